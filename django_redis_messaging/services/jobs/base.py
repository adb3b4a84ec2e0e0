"""What a consumer of a delay queue needs: pop, and what settles a lease."""

from __future__ import annotations

from time import monotonic

from ... import conf
from ...core.keys import name as checked
from ...core.operations import Service, Steps, asynchronous, operation
from ...errors import InvalidArgument, OutcomeUnknown, Unavailable
from ..arguments import Duration, count, milliseconds
from .encoding import decode_jobs, failure_line
from .engine import POLL_INTERVAL, Engine, check_attempts
from .leases import Lease, Outcome
from .values import Job

#: name of a queue that has its slot to itself, in the keys and in leases
ONLY_QUEUE = "jobs"
#: jobs that one call pops or lists at most
MAX_JOBS = 500


class LeaseQueue(Service):
    """A queue as its consumers use it."""

    def __init__(self, name: str, *, max_attempts: int | None = None, using: str | None = None) -> None:
        super().__init__(using=using)
        self.name = checked(name, "name")
        attempts = conf.current().JOB_MAX_ATTEMPTS if max_attempts is None else max_attempts
        self._max_attempts = check_attempts(attempts, "max_attempts")
        self._engine = Engine(self._prefix, "queue", name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @operation
    def pop(
        self, num: int = 5, *, lease: Duration | None = 30, min_age: Duration = 0, wait: Duration = 0
    ) -> Steps[list[Job]]:
        """Lease up to `num` ready jobs (1 to 500) for `lease` seconds.

        A job that is not acked, retried, released, failed or extended by then is delivered again.
        `lease=None` deletes the jobs at once: each is delivered at most once, and lost if its consumer
        crashes. `min_age` pops only jobs that became due at least so long ago. With `wait`, the call returns
        as soon as a job is ready, or with an empty list after that time.

        >>> DelayQueue("nothing").pop(wait=0.01)
        []
        """
        wanted = count(num, "num", maximum=MAX_JOBS)
        length = 0 if lease is None else milliseconds(lease, "lease", minimum=1)
        age = milliseconds(min_age, "min_age")
        ends = monotonic() + milliseconds(wait, "wait") / 1000
        while True:
            claimed = yield from self._engine.claim([ONLY_QUEUE], wanted, length, min_age=age)
            left = ends - monotonic()
            if claimed.jobs or left <= 0:
                return decode_jobs(claimed.jobs, self.name)
            due_in = POLL_INTERVAL if claimed.due_in is None else claimed.due_in
            try:
                yield from self._engine.wait([ONLY_QUEUE], min(left, due_in), linger=left)
            except (Unavailable, OutcomeUnknown):
                continue  # only a wake-up was lost; the next claim tells whether Redis is reachable

    apop = asynchronous(pop)

    @operation
    def ack(self, job: Job) -> Steps[bool | None]:
        """Report that the job is done. False, with nothing changed, if the lease is lost: the job was
        delivered to another consumer meanwhile.

        None if a reply was lost and the repeat found nothing to do: either the job was acked, or the lease
        was lost at that moment. The same holds for `retry`, `release` and `fail`.
        """
        return (yield from self._settle(job, Outcome.DONE))

    aack = asynchronous(ack)

    @operation
    def retry(self, job: Job, delay: Duration = 0) -> Steps[bool | None]:
        """Requeue the job after `delay`; after its last attempt it is dead. False if the lease is lost."""
        return (yield from self._settle(job, Outcome.RETRY, milliseconds(delay, "delay")))

    aretry = asynchronous(retry)

    @operation
    def release(self, job: Job, delay: Duration = 0) -> Steps[bool | None]:
        """Requeue the job after `delay`; the attempt doesn't count. False if the lease is lost."""
        return (yield from self._settle(job, Outcome.RELEASE, milliseconds(delay, "delay")))

    arelease = asynchronous(release)

    @operation
    def fail(self, job: Job, reason: str) -> Steps[bool | None]:
        """Move the job to the dead jobs, with a reason, until it is redriven. False if the lease is lost."""
        return (yield from self._settle(job, Outcome.DEAD, 0, failure_line(reason)))

    afail = asynchronous(fail)

    @operation
    def extend(self, job: Job, lease: Duration) -> Steps[bool]:
        """Make the lease end `lease` seconds from now, if that is later. False if it is lost."""
        return (yield from self._extend(job, lease))

    aextend = asynchronous(extend)

    def _extend(self, job: Job, lease: Duration) -> Steps[bool]:
        length = milliseconds(lease, "lease", minimum=1)
        [in_force] = yield from self._engine.extend([self._lease(job)], length)
        return in_force

    def _settle(self, job: Job, outcome: Outcome, ms: int = 0, line: str = "") -> Steps[bool | None]:
        return self._engine.settle(self._lease(job).settled(outcome, ms, line))

    def _lease(self, job: Job) -> Lease:
        if job.queue != self.name:
            raise InvalidArgument(f"job must be of the queue {self.name!r}, not of {job.queue!r}.")
        return Lease(ONLY_QUEUE, job.id, job.fence, job.token)
