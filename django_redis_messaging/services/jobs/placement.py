"""Where the jobs of a worker run: each in a lane, several quick ones in one lane, or as coroutines.

A worker claims a job for each free lane, and more when the recent ones were quick: tasks whose jobs take less
than a millisecond share a lane, so that one claim serves many. A slow job behind which others wait gives them
back (see executor.py); they go to other lanes, or are released, uncharged.

A job that may have ended its process runs apart (see State.apart): it starts when no other job runs here, and
no other one is claimed meanwhile. If it ends this process, too, it takes no others with it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from time import monotonic

from .children import APART_DELAY, Children
from .engine import PAGE, LeasedJob
from .executor import Executor

logger = logging.getLogger(__name__)

#: quick jobs that a lane gets at a time, at most
MAX_BATCH = 32
#: from this size of batches on, one waits for the next free lane
PREFETCHED = 8
#: mean seconds below which the jobs of a task are quick; how many have to be seen before
QUICK, MIN_SEEN = 0.001, 3
#: seconds that one job adds to the mean, at most: it may have waited for a processor
MAX_SAMPLE = 0.005
#: tasks whose speed is remembered
MAX_TASKS = 1000
#: seconds for which a job that runs apart waits until no other one runs here; then it is released for as
#: long, so that another worker can have it. Both are doubled with each try, up to the maximum
APART_FIRST_WAIT, APART_MAX_WAIT = 5.0, 300.0


class Job:
    """A job that a worker has claimed."""

    __slots__ = ("is_cancelled", "is_lost", "leased", "number", "place", "task")

    def __init__(self, number: int, leased: LeasedJob) -> None:
        self.number = number
        self.leased = leased
        #: name of the task, or the queue of a job without one
        self.task = task_of(leased.state.more) or leased.lease.queue
        self.place: Place | None = None
        #: whether another worker may have it
        self.is_lost = False
        #: whether it shall be cancelled
        self.is_cancelled = False

    @property
    def is_single(self) -> bool:
        """Whether it gets a lane for itself: handing it back would be risky, or it may have to wait. A timer,
        which has no fields, waits for Redis."""
        more = self.leased.state.more
        return self.leased.state.max_attempts == 1 or not more or " needs=" in more

    def leave(self) -> None:
        """It has ended."""
        if self.place is not None:
            self.place.remove()

    def leave_lane(self) -> None:
        """It goes on as a coroutine."""
        if self.place is not None:
            self.place.remove()
            self.place = self.place.host.add(1, is_async=True)


def task_of(more: str) -> str:
    """The name of the task in the fields of a state that never change; empty if there is none.

    >>> task_of(" task=shop.tasks.pack group=acme")
    'shop.tasks.pack'
    """
    if more.startswith(" task="):  # the first one, if there is one
        end = more.find(" ", 6)
        return more[6:] if end < 0 else more[6:end]
    return ""


class Host:
    """An executor, in this process or in children, with the number of jobs that it runs."""

    __slots__ = ("executor", "free", "has_children", "room", "spare")

    def __init__(self, executor: Executor | Children, lanes: int, room: int, processes: int = 0) -> None:
        """`lanes` and `room` of each process."""
        spare = max(processes, 1)
        self.executor = executor
        self.has_children = processes > 0
        #: lanes without a batch; negative: so many batches wait for the next free lanes
        self.free = spare * lanes
        #: coroutines that may still be started
        self.room = spare * room
        #: batches that may wait: one for each process
        self.spare = spare

    @property
    def places_to_wait(self) -> int:
        """Further batches that may wait for the next free lanes."""
        return self.spare + min(self.free, 0)

    def add(self, count: int, *, is_async: bool) -> Place:
        """Make a place for jobs: a lane, or room for coroutines."""
        if is_async:
            self.room -= count
        else:
            self.free -= 1
        return Place(self, count, is_async)


class Place:
    """Where the jobs of one batch run."""

    __slots__ = ("count", "host", "is_async")

    def __init__(self, host: Host, count: int, is_async: bool) -> None:
        self.host = host
        #: jobs that have not ended
        self.count = count
        self.is_async = is_async

    def remove(self) -> None:
        """Remove a job that has ended."""
        self.count -= 1
        if self.is_async:
            self.host.room += 1
        elif self.count == 0:
            self.host.free += 1


class Speed:
    """How long the jobs of one task occupy a lane."""

    __slots__ = ("is_async", "mean", "seen")

    def __init__(self) -> None:
        self.seen = 0
        self.mean = 0.0
        self.is_async = False

    @property
    def is_quick(self) -> bool:
        """Whether several of its jobs may share a lane."""
        return self.seen >= MIN_SEEN and self.mean < QUICK


class Speeds:
    """The speeds of the tasks that a worker has run."""

    def __init__(self) -> None:
        self._tasks: dict[str, Speed] = {}

    def sort(self, jobs: Sequence[Job]) -> tuple[list[Job], list[Job], list[Job]]:
        """The jobs that get a lane each, those that share one, and those that run as coroutines."""
        single: list[Job] = []
        quick: list[Job] = []
        coroutines: list[Job] = []
        for job in jobs:
            speed = self._tasks.get(job.task)
            if speed is None or job.leased.state.apart or job.is_single:
                single.append(job)
            elif speed.is_async:
                coroutines.append(job)
            else:
                (quick if speed.is_quick else single).append(job)
        return single, quick, coroutines

    def note(self, task: str, seconds: float, *, is_async: bool) -> None:
        """Add a job that has ended to the running mean."""
        speed = self._tasks.get(task)
        if speed is None:
            if len(self._tasks) >= MAX_TASKS:
                self._tasks.clear()
            speed = self._tasks[task] = Speed()
        speed.is_async = is_async
        speed.seen += 1
        sample = seconds if seconds < MAX_SAMPLE else MAX_SAMPLE
        speed.mean += (sample - speed.mean) / (speed.seen if speed.seen < 8 else 8)


class Apart:
    """The job of a worker that runs apart, or waits for that."""

    def __init__(self) -> None:
        self.waiting: Job | None = None
        #: where it runs, and has run
        self.running: Place | None = None
        #: until when it waits: monotonic
        self.ends = 0.0
        self._wait = APART_FIRST_WAIT

    @property
    def is_exclusive(self) -> bool:
        """Whether no other job may start."""
        return self.waiting is not None or (self.running is not None and self.running.count > 0)

    def hold(self, job: Job) -> None:
        """Let a job wait."""
        self.waiting, self.ends = job, monotonic() + self._wait

    def give_up(self) -> float:
        """Let it wait no more. Returns the seconds for which it is released; the next one waits longer."""
        seconds, self.waiting = self._wait, None
        self._wait = min(2 * seconds, APART_MAX_WAIT)
        return seconds

    def seconds(self, now: float) -> float:
        """Seconds until the wait ends."""
        return math.inf if self.waiting is None else self.ends - now


class Placement:
    """Places the jobs of a worker: which ones share a lane, and how many more there is room for."""

    def __init__(self, jobs: dict[int, Job], release: Callable[[Job, float], object]) -> None:
        """`jobs`: those of the worker that have not ended, by number. `release` releases a job that has not
        started; it is delayed for so many seconds."""
        #: None until the worker has started it
        self.host: Host | None = None
        self.apart = Apart()
        self.speeds = Speeds()
        #: whether there was no place for a job; until another one has ended
        self.is_full = False
        self._jobs = jobs
        self._release = release
        self._is_stopped = False
        #: quick jobs that are claimed for each free lane
        self._size = 1
        #: whether all jobs of the last claim were coroutines
        self._claimed_coroutines = False

    def room(self) -> int:
        """How many jobs to claim."""
        host = self.host
        if host is None or self._is_stopped or self.is_full or self.apart.is_exclusive:
            return 0
        room = max(host.free, 0) * self._size
        if self._size >= PREFETCHED:
            room += host.places_to_wait * self._size
        if self._claimed_coroutines:
            room = max(room, min(host.room, 2 * MAX_BATCH))
        return min(room, PAGE)

    def place(self, jobs: Sequence[Job], *, is_full: bool, may_wait: bool = True) -> None:
        """Hand over jobs, and release those for which there is no place. `is_full`: as many as wanted;
        `may_wait`: for the next free lane, too."""
        host = self.host
        apart: list[Job] = []
        if host is not None and not host.has_children:
            apart = [job for job in jobs if job.leased.state.apart]
            jobs = [job for job in jobs if not job.leased.state.apart]
        single, quick, coroutines = self.speeds.sort(jobs)
        if host is None or self.apart.is_exclusive:
            left = [*single, *quick, *coroutines]
        else:
            left = self._place_single(host, single)
            left += self._place_quick(host, quick, may_wait) + self._place_coroutines(host, coroutines)
        for job in left:
            self._release(job, 0.0)
        for job in apart:
            self._hold_apart(job)
        self.is_full = bool(left)
        self._claimed_coroutines = bool(coroutines) and not (single or quick)
        if single or left:
            self._size = 1
        elif is_full:
            self._size = min(2 * self._size, MAX_BATCH)

    def place_again(self, jobs: Sequence[Job]) -> None:
        """Hand over jobs that were given back to other lanes, or release them."""
        kept = []
        for job in jobs:
            if job.is_cancelled or self._is_stopped:
                self._release(job, 0.0)
            elif not job.is_lost:
                kept.append(job)
        if kept:
            self._size = 1
            self.place(kept, is_full=False, may_wait=False)

    def leave_lane(self, job: Job) -> None:
        """A job goes on as a coroutine."""
        place = job.place
        job.leave_lane()
        if place is not None and self.apart.running is place:
            self.apart.running = job.place

    def start_apart(self, now: float, *, is_settled: bool) -> None:
        """Start the job that waits to run apart if it may start; release it if it has waited for too long.
        `is_settled`: whether no lease is to be settled; its end would take those with it."""
        job = self.apart.waiting
        if job is None or self.host is None:
            return
        if job.is_lost or job.is_cancelled:
            self.give_up_apart()
        elif len(self._jobs) == 1 and is_settled:
            self.apart.waiting = None
            self._run(self.host, [job])
            self.apart.running = job.place
        elif now >= self.apart.ends:
            del self._jobs[job.number]
            delay = self.apart.give_up()
            logger.info(
                "Job id=%s was not started, since other jobs run in this process; released for %.0f s.",
                job.leased.lease.id, delay,
            )  # fmt: skip
            self._release(job, delay)

    def give_up_apart(self) -> None:
        """Release the job that waits to run apart, unless another worker may have it."""
        job, self.apart.waiting = self.apart.waiting, None
        if job is not None:
            self.place_again([self._jobs.pop(job.number)])

    def stop(self, *, running: bool = False) -> None:
        """Start no more jobs, and give back those that have not started; with `running`, all others, too."""
        self._is_stopped = True
        if self.host is not None:
            self.host.executor.give_back(running=running)

    def close(self, seconds: float) -> None:
        """End the threads or processes that run jobs, within so many seconds."""
        if self.host is not None:
            self.host.executor.close(seconds)

    def _place_single(self, host: Host, jobs: list[Job]) -> list[Job]:
        """Give each job a lane; returns those for which there is none."""
        free = max(host.free, 0)
        for job in jobs[:free]:
            self._run(host, [job])
        return jobs[free:]

    def _place_quick(self, host: Host, jobs: list[Job], may_wait: bool) -> list[Job]:
        """Share quick jobs among the lanes; returns those for which there is no place."""
        places = max(host.free, 0) + (host.places_to_wait if may_wait else 0)
        while jobs and places > 0:
            size = min(-(-len(jobs) // places), MAX_BATCH)
            batch, jobs = jobs[:size], jobs[size:]
            self._run(host, batch)
            places -= 1
        return jobs

    def _place_coroutines(self, host: Host, jobs: list[Job]) -> list[Job]:
        """Start coroutines; returns those for which there is no room."""
        while jobs and (size := min(host.room, MAX_BATCH)) > 0:
            batch, jobs = jobs[:size], jobs[size:]
            self._run(host, batch, is_async=True)
        return jobs

    def _run(self, host: Host, jobs: Sequence[Job], *, is_async: bool = False) -> None:
        place = host.add(len(jobs), is_async=is_async)
        for job in jobs:
            job.place = place
            self._jobs[job.number] = job
        host.executor.run([(job.number, job.leased) for job in jobs], is_async=is_async)

    def _hold_apart(self, job: Job) -> None:
        """Let a job that runs apart wait until no other one runs here; one at a time."""
        if self.apart.is_exclusive:
            self._release(job, APART_DELAY)
        else:
            self.apart.hold(job)
            self._jobs[job.number] = job
