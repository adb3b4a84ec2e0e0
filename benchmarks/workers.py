"""Workers of task queues on Redis, compared: tasks per second, latency, memory.

uv run --with huey --with dramatiq --with rq --with celery --with saq --with streaq --with taskiq \
    --with taskiq-redis python -m benchmarks.workers
uv run python -m benchmarks.workers --quick --only 'this app' Dramatiq

Each worker is started by its own command line, with the settings that it recommends, and has a Redis server
of its own. In each round, every worker runs with 1, 2 and 4 processes, one after the other. Results are the
medians of the rounds. `peers/` has the queues.

Tasks per second: the processes of the idle worker are stopped (SIGSTOP) while a backlog is enqueued, so that
the start of the worker is not measured. The rate counts from the first task that ran to the last one. The
processor time of a no-op depends less on other work on the machine than rates do. Latency is the time from
the call that enqueues a task to the task. Memory is that of all processes of an idle worker that has run a
task: PSS counts a page that n processes share as 1/n, RSS counts it for each.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from . import peers
from .harness import table
from .rate_peers import Server

#: seconds: until a worker has started, until a backlog has been run, until a worker has ended
START, BACKLOG, END = 30.0, 30.0, 3.0
#: seconds without work after which a worker has started, and the processor time that it may take meanwhile
QUIET, IDLE_TIME = 0.5, 0.03
#: seconds between two checks
POLL = 0.002
#: tasks of a backlog, at most; seconds of a trial backlog, at least
MOST, TRIAL = 20_000, 0.1
KINDS = {"noop": "no-op", "anoop": "async no-op", "cpu": "1 ms of CPU", "fail": "failing"}
OURS = "this app"


class Peer(NamedTuple):
    """A worker of a queue."""

    name: str
    #: in `peers/`
    module: str
    #: that must be installed
    package: str
    #: one of several that the module has
    form: str = ""
    #: whether it can run all tasks in the process that is started
    has_zero: bool = False


PEERS = {
    peer.name: peer
    for peer in (
        Peer(OURS, "ours", "django_redis_messaging", has_zero=True),
        Peer("huey, processes", "huey_queue", "huey"),
        Peer("huey, 4 threads each", "huey_queue", "huey", "threads"),
        Peer("Dramatiq", "dramatiq_queue", "dramatiq"),
        Peer("RQ", "rq_queue", "rq"),
        Peer("RQ, SimpleWorker", "rq_queue", "rq", "simple"),
        Peer("Celery, prefork", "celery_queue", "celery"),
        Peer("SAQ", "saq_queue", "saq"),
        Peer("streaQ", "streaq_queue", "streaq"),
        Peer("taskiq", "taskiq_queue", "taskiq_redis"),
    )
}


class Plan(NamedTuple):
    """How much is measured."""

    rounds: int
    #: of each worker
    processes: tuple[int, ...]
    #: a backlog is as long as the worker needs for it
    seconds: float
    #: tasks that are enqueued one by one to an idle worker
    singles: int
    #: seconds for one worker in one round, at most
    limit: float
    #: after which no further worker is measured
    minutes: float


FULL = Plan(3, (1, 2, 4), 1.0, 200, 150.0, 22.0)
QUICK = Plan(1, (1, 4), 0.3, 50, 40.0, 4.3)


@dataclass
class Measured:
    """What one worker did in one round."""

    #: tasks per second of each kind
    rates: dict[str, float] = field(default_factory=dict)
    #: µs of a processor for each task that does nothing: of the worker, of Redis
    costs: tuple[float, float] | None = None
    #: why a kind has no rate
    failures: dict[str, str] = field(default_factory=dict)
    #: MiB: PSS, RSS; processes
    memory: tuple[float, float, int] | None = None
    #: ms: p50, p99, maximum; and the tasks enqueued per second
    idle: tuple[float, float, float, float] | None = None
    half: tuple[float, float, float, float] | None = None


class Backlog(NamedTuple):
    """A backlog that has run."""

    numbers: range
    #: tasks per second
    rate: float
    #: µs of a processor for each task: of the worker, of Redis
    costs: tuple[float, float]


class Worker:
    """The processes of a running worker."""

    def __init__(self, commands: Sequence[Sequence[str]], log: Path) -> None:
        self._log = log
        with log.open("wb") as output:
            self._started = [
                subprocess.Popen(
                    [sys.executable, *command], stdin=subprocess.DEVNULL, stdout=output, stderr=output
                )
                for command in commands
            ]

    def pids(self) -> list[int]:
        """All processes, with their children."""
        children = defaultdict(list)
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                parent = int(path.read_text(encoding="utf-8").rpartition(")")[2].split()[1])
                children[parent].append(int(path.parent.name))
        found = [process.pid for process in self._started]
        for pid in found:
            found += children[pid]
        return found

    def check(self) -> None:
        """Raise RuntimeError if it has ended."""
        for process in self._started:
            if process.poll() is not None:
                raise RuntimeError(f"The worker ended with code {process.returncode}: {self.last_line()}")

    def last_line(self) -> str:
        """The last line of its output."""
        return (
            self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["no output"]
        )[-1]

    def processor_seconds(self) -> float:
        """The processor time of all processes and of their children that have ended."""
        ticks = 0
        for pid in self.pids():
            with suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                ticks += sum(map(int, fields[11:15]))
        return ticks / os.sysconf("SC_CLK_TCK")

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop all processes for a while."""
        pids = self.pids()
        _send(pids, signal.SIGSTOP)
        try:
            yield
        finally:
            _send(pids, signal.SIGCONT)

    def memory(self) -> tuple[float, float, int]:
        """MiB of all processes: PSS, RSS; number of processes."""
        pss = rss = 0
        pids = self.pids()
        for pid in pids:
            with suppress(OSError):
                fields = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").split()
                pss += int(fields[fields.index("Pss:") + 1])
                rss += int(fields[fields.index("Rss:") + 1])
        return pss / 1024, rss / 1024, len(pids)

    def end(self) -> None:
        """End all processes."""
        pids = self.pids()
        for process in self._started:
            process.terminate()
        ends = time.monotonic() + END
        for process in self._started:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(ends - time.monotonic(), 0.01))
        _send([*pids, *self.pids()], signal.SIGKILL)
        for process in self._started:
            process.wait()


def _send(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


class Cell:
    """The measurement of one worker with a number of processes."""

    def __init__(self, peer: Peer, processes: int, plan: Plan, server: Server, log: Path) -> None:
        self._queue: Any = importlib.import_module(f"{__package__}.peers.{peer.module}")
        self._notes: Any = importlib.import_module(f"{__package__}.peers.work")
        self._processes = processes
        self._plan = plan
        self._redis = server.client()
        self._next = 0
        self._measured = Measured()
        self._worker = Worker(self._queue.command(processes), log)

    def run(self) -> Measured:
        """Measure all, then end the worker."""
        try:
            self._start()
            self._measured.memory = self._worker.memory()
            rate = self._try_rate()
            for kind in KINDS:
                with self._noting_failure(kind):
                    self._measure(kind, self._count(kind, rate))
            if self._processes <= 1:
                with self._noting_failure("latency"):
                    self._measure_latencies()
        finally:
            self._worker.end()
        return self._measured

    @contextmanager
    def _noting_failure(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._measured.failures[what] = str(error) or type(error).__name__

    def _start(self) -> None:
        """Wait until the worker has run a task, and all its processes are idle."""
        self._queue.push("noop", [number := self._take(1)[0]])
        self._wait([number], START, "The worker did not run a task")
        ends = time.monotonic() + START
        while time.monotonic() < ends:
            used = self._worker.processor_seconds()
            time.sleep(QUIET)
            self._worker.check()
            if self._worker.processor_seconds() - used <= IDLE_TIME * max(self._processes, 1):
                return
        raise RuntimeError(f"The worker was not idle within {START:g} s.")

    def _take(self, count: int) -> range:
        """The numbers of further tasks."""
        self._next += count
        return range(self._next - count, self._next)

    def _wait(self, numbers: Sequence[int], seconds: float, problem: str) -> None:
        """Wait until these tasks have run. They run about in order, so the last one is looked at first."""
        ends, times = time.monotonic() + seconds, self._notes.times
        while not (times[numbers[-1]] and all(times[number] for number in numbers)):
            self._worker.check()
            if time.monotonic() > ends:
                done = sum(1 for number in numbers if times[number])
                last = self._worker.last_line()
                raise RuntimeError(f"{problem} within {seconds:g} s: {done} of {len(numbers)} ran. {last}")
            time.sleep(POLL)

    def _try_rate(self) -> float:
        """A first estimate of the tasks per second, which also warms up the worker."""
        count = 50
        while True:
            rate = self._run_backlog("noop", count).rate
            if count >= rate * TRIAL or count >= MOST:
                return rate
            count *= 4

    def _count(self, kind: str, rate: float) -> int:
        """The length of a backlog, from the estimated rate of tasks that do nothing."""
        if kind == "cpu":
            processors = min(max(self._processes, 1), os.cpu_count() or 1)
            rate = 1 / (1 / rate + self._notes.WORK / processors)
        if kind == "fail":
            rate /= 2  # logs and tracebacks
        return min(max(round(rate * self._plan.seconds), 50), MOST)

    def _measure(self, kind: str, count: int) -> None:
        """Measure the rate of a kind of tasks; of those that do nothing, also what each costs."""
        backlog = self._run_backlog(kind, count)
        self._measured.rates[kind] = backlog.rate
        if kind == "noop":
            self._measured.costs = backlog.costs
            used = len({self._notes.processes[number] for number in backlog.numbers})
            if used < self._processes:
                self._measured.failures["spread"] = f"{used} of {self._processes} processes ran tasks"

    def _run_backlog(self, kind: str, count: int) -> Backlog:
        """Enqueue a backlog while the worker is stopped, then wait until it has run."""
        numbers, times = self._take(count), self._notes.times
        with self._worker.frozen():
            self._queue.push(kind, numbers)
            before = self._used()
        self._wait(numbers, BACKLOG, f"The backlog of {kind} was not run")
        costs = [1e6 * (now - then) / count for now, then in zip(self._used(), before, strict=True)]
        repeated = sum(1 for number in numbers if self._notes.runs[number] > 1)
        if repeated:
            raise RuntimeError(f"{repeated} of {count} tasks ran more than once.")
        ran = sorted(times[number] for number in numbers)
        return Backlog(numbers, (count - 1) / (ran[-1] - ran[0]), (costs[0], costs[1]))

    def _used(self) -> tuple[float, float]:
        """Seconds of a processor so far: of the worker, of Redis."""
        info: dict[str, Any] = self._redis.info("cpu")
        return self._worker.processor_seconds(), info["used_cpu_user"] + info["used_cpu_sys"]

    def _measure_latencies(self) -> None:
        """Measure latencies, on an idle worker and at half of its rate."""
        self._measured.idle = self._latency([0.005] * self._plan.singles, wait=True)
        half = self._measured.rates["noop"] / 2
        count = min(max(round(half * self._plan.seconds), 50), MOST)
        self._measured.half = self._latency([1 / half] * count, wait=False)

    def _latency(self, pauses: Sequence[float], *, wait: bool) -> tuple[float, float, float, float]:
        """ms from enqueuing to the task: p50, p99, maximum; tasks enqueued per second. Each task is enqueued
        after its pause, after the one before was due, or if `wait`, after it ran."""
        numbers = self._take(len(pauses))
        enqueued = []
        began = due = time.monotonic()
        for number, pause in zip(numbers, pauses, strict=True):
            due += pause
            if (left := due - time.monotonic()) > 0:
                time.sleep(left)
            enqueued.append(time.monotonic())
            self._queue.push("noop", [number])
            if wait:
                self._wait([number], BACKLOG, "A single task was not run")
                due = time.monotonic()
        took = time.monotonic() - began
        self._wait(numbers, BACKLOG, "Tasks that were enqueued at half of the rate were not run")
        late = sorted(self._notes.times[number] - at for number, at in zip(numbers, enqueued, strict=True))
        p50, p99, most = (1000 * late[int((len(late) - 1) * share)] for share in (0.5, 0.99, 1))
        return p50, p99, most, len(late) / took


def measure(name: str, processes: int, plan: Plan, results: bool) -> None:
    """Print what one worker did as JSON. Runs in a process of its own."""
    peer = PEERS[name]
    with tempfile.TemporaryDirectory() as directory, Server() as server:
        file = Path(directory) / "notes"
        with file.open("wb") as new:
            new.truncate(peers.SIZE)
        os.environ |= {
            peers.URL: server.url,
            peers.FILE: str(file),
            peers.RESULTS: "1" if results else "",
            peers.FORM: peer.form,
        }
        measured = Cell(peer, processes, plan, server, Path(directory) / "log").run()
    print(json.dumps(vars(measured)))


def _measured(peer: Peer, processes: int, limit: float, options: Sequence[str]) -> Measured:
    """Measure one worker in one round."""
    if importlib.util.find_spec(peer.package) is None:
        return Measured(failures={"": "not installed"})
    one = [sys.executable, "-m", "benchmarks.workers", "--one", peer.name, str(processes), *options]
    with subprocess.Popen(
        one, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        try:
            output, errors = running.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            return Measured(failures={"": f"not measured within {limit:g} s"})
        finally:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
    if running.returncode:
        return Measured(failures={"": (errors.strip().splitlines() or ["no output"])[-1]})
    return Measured(**json.loads(output.splitlines()[-1]))


class Row(NamedTuple):
    """A worker with a number of processes, in all rounds."""

    peer: Peer
    processes: int
    rounds: list[Measured]

    @property
    def name(self) -> str:
        if not self.processes:
            return f"{self.peer.name}, --processes 0"
        return f"{self.peer.name}, {self.processes} process{'' if self.processes == 1 else 'es'}"

    def median(self, value: Callable[[Measured], float | None], form: str = ",.0f") -> str:
        """The median of the rounds that have this value; "-" without any."""
        values = [found for one in self.rounds if (found := value(one)) is not None]
        return format(statistics.median(values), form) if values else "-"


def _rates(rows: Sequence[Row]) -> str:
    """Tasks per second; those that do nothing relative to this app, and the processor time of one of them."""
    head = [*KINDS.values(), f"no-op of {OURS}", "µs of the worker", "µs of Redis", "rounds"]
    lines = [["tasks per second", *head]]
    ours = {row.processes: row for row in rows if row.peer.name == OURS}
    for row in rows:
        rates = [row.median(lambda one, kind=kind: one.rates.get(kind)) for kind in KINDS]  # type: ignore[misc]
        costs = [row.median(lambda one, at=at: one.costs and one.costs[at]) for at in (0, 1)]  # type: ignore[misc]
        ratio = _ratio(row, ours.get(row.processes))
        lines.append([row.name, *rates, ratio, *costs, str(len(row.rounds))])
    return table(lines)


def _ratio(row: Row, ours: Row | None) -> str:
    """The median of the ratios of all rounds."""
    pairs = zip(row.rounds, ours.rounds if ours else [], strict=False)
    ratios = [
        one.rates["noop"] / other.rates["noop"]
        for one, other in pairs
        if "noop" in one.rates and "noop" in other.rates
    ]
    return f"{statistics.median(ratios):.2f}" if ratios else "-"


def _memory(rows: Sequence[Row]) -> str:
    """Memory of idle workers."""
    lines = [["memory of an idle worker, MiB", "PSS", "RSS", "PSS a process", "processes"]]
    for row in rows:
        shares = [row.median(lambda one, at=at: one.memory and one.memory[at]) for at in (0, 1)]  # type: ignore[misc]
        each = row.median(lambda one, n=row.processes: one.memory and one.memory[0] / max(n, 1))  # type: ignore[misc]
        lines.append([row.name, *shares, each, row.median(lambda one: one.memory and one.memory[2])])
    return table(lines)


def _latencies(rows: Sequence[Row]) -> str:
    """Latencies of workers with one process."""
    columns = ("p50", "p99", "max")
    head = [*(f"idle {name}" for name in columns), *(f"half {name}" for name in columns), "enqueued/s"]
    lines = [["from enqueuing to the start, ms", *head]]
    for row in rows:
        if row.processes <= 1:
            idle = [row.median(lambda one, at=at: one.idle and one.idle[at], ".1f") for at in range(3)]  # type: ignore[misc]
            half = [row.median(lambda one, at=at: one.half and one.half[at], ".1f") for at in range(3)]  # type: ignore[misc]
            lines.append([row.name, *idle, *half, row.median(lambda one: one.half and one.half[3])])
    return table(lines)


def _failures(rows: Sequence[Row]) -> Iterator[str]:
    """What could not be measured, and why."""
    for row in rows:
        reasons: dict[str, int] = defaultdict(int)
        for one in row.rounds:
            for kind, reason in one.failures.items():
                reasons[f"{KINDS.get(kind, kind)}: {reason}".lstrip(": ")] += 1
        for reason, count in reasons.items():
            yield f"{row.name}: {reason} ({count} of {len(row.rounds)} rounds)"


def main(names: Sequence[str], plan: Plan, options: Sequence[str]) -> None:
    began = time.monotonic()
    rows = [
        Row(PEERS[name], count, [])
        for count in (0, *plan.processes)
        for name in names
        if count or PEERS[name].has_zero
    ]
    for number in range(plan.rounds):
        turns = rows[number % len(rows) :] + rows[: number % len(rows)]
        for row in turns:
            if time.monotonic() - began > 60 * plan.minutes:
                break
            row.rounds.append(one := _measured(row.peer, row.processes, plan.limit, options))
            print(f"{row.name}: {json.dumps(vars(one))}", file=sys.stderr, flush=True)
    for form in (_rates, _memory, _latencies):
        print(f"\n{form(rows)}")
    print("", *_failures(rows), sep="\n")
    print(f"\n{(time.monotonic() - began) / 60:.1f} minutes, {os.cpu_count()} processors")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round, less than five minutes")
    parser.add_argument(
        "--only", nargs="+", choices=PEERS, default=list(PEERS), metavar="NAME", help=", ".join(PEERS)
    )
    parser.add_argument("--rounds", type=int, help="rounds")
    parser.add_argument(
        "--results", action="store_true", help="store results in those that don't by default, too"
    )
    parser.add_argument("--one", nargs=2, metavar=("NAME", "PROCESSES"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that it ends what it has started
    planned = QUICK if chosen.quick else FULL
    if chosen.one:
        measure(chosen.one[0], int(chosen.one[1]), planned, chosen.results)
    else:
        passed = [f"--{name}" for name in ("quick", "results") if getattr(chosen, name)]
        main(chosen.only, planned._replace(rounds=chosen.rounds or planned.rounds), passed)
