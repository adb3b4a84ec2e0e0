"""Delay queues and tasks, compared with a bare PING, the original algorithms, and huey if it is installed.

uv run --with huey python -m benchmarks.jobs
uv run --with huey python -m benchmarks.jobs --rounds 5 --million 0
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import time
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from .harness import Contest, awake, driver, processes, server, table

PING, ORIGINAL, PUSH, POP = "PING", "original algorithm", "DelayQueue.push", "DelayQueue.pop, 5 jobs"
ENQUEUE, RUN, HUEY = "task.enqueue", "run_worker", "huey"
#: whether huey is installed
PEER = importlib.util.find_spec("huey") is not None
PAYLOAD = {"to": "ann@example.com", "order": 17}


class Original:
    """The original delay queue: two keys per job; the client that removes a job owns it."""

    def __init__(self) -> None:
        self.client = driver()

    def push(self) -> None:
        name = uuid.uuid4().hex
        self.client.set(f"original:job:{name}", json.dumps(PAYLOAD))
        self.client.zadd("original:queue", {name: time.time()})

    def pop(self, num: int = 5) -> list[Any]:
        names = self.client.zrangebyscore("original:queue", 0, time.time(), start=0, num=num)
        removed = [name for name in names if self.client.zrem("original:queue", name)]
        keys = [f"original:job:{name.decode()}" for name in removed]
        raw = self.client.mget(keys)
        self.client.delete(*keys)
        return [json.loads(one) for one in raw]

    def delay(self, count: int) -> None:
        with self.client.pipeline(transaction=False) as pipeline:
            for _ in range(count):
                packed = json.dumps([uuid.uuid4().hex, "queue", "name", []])
                pipeline.zadd("original:delayed", {packed: time.time()})
            pipeline.execute()

    def poll(self, count: int) -> None:
        for _ in range(count):
            [(packed, _)] = self.client.zrange("original:delayed", 0, 0, withscores=True)
            name, queue, *_ = json.loads(packed)
            token = uuid.uuid4().hex
            if not self.client.setnx(f"original:lock:{name}", token):
                raise RuntimeError("Another client holds the lock.")
            if self.client.zrem("original:delayed", packed):
                self.client.rpush(f"original:queue:{queue}", packed)
            with self.client.pipeline() as transaction:
                transaction.watch(f"original:lock:{name}")
                if transaction.get(f"original:lock:{name}") == token.encode():
                    transaction.multi()
                    transaction.delete(f"original:lock:{name}")
                    transaction.execute()


def pushing(rounds: int) -> list[list[str]]:
    """Add one job. Returns rows of the summary."""
    from django_redis_messaging import DelayQueue

    from . import tasks

    queue, original = DelayQueue("pushing"), Original()
    contest = Contest("add a job", rounds)
    contest.add(PING, driver().ping)
    contest.add(PUSH, lambda: queue.push(PAYLOAD))
    contest.add(ORIGINAL, original.push)
    contest.add(ENQUEUE, lambda: tasks.nothing.enqueue())
    if PEER:
        contest.add(HUEY, tasks.huey_task())
    results = contest.run()
    print(results)
    lines = [
        ["push", f"{results[PUSH].ratio:.2f}", f"{results.speedup(PUSH, ORIGINAL):.1f} times the original"]
    ]
    if PEER:
        lines += [
            ["enqueue", f"{results[ENQUEUE].ratio:.2f}", f"{results.speedup(ENQUEUE, HUEY):.1f} times huey"]
        ]
    return lines


def popping(rounds: int) -> list[list[str]]:
    """Pop five jobs without a lease, as the original does. Returns rows of the summary."""
    from django_redis_messaging import DelayQueue

    queue, original = DelayQueue("popping"), Original()
    contest = Contest("pop 5 jobs", rounds)
    contest.add(PING, driver().ping)
    contest.add(POP, lambda: queue.pop(5, lease=None), prepare=lambda: queue.push_many([PAYLOAD] * 5))
    contest.add(ORIGINAL, original.pop, prepare=lambda: [original.push() for _ in range(5)])
    results = contest.run()
    print(results)
    return [
        ["pop 5", f"{results[POP].ratio:.2f}", f"{results.speedup(POP, ORIGINAL):.1f} times the original"]
    ]


def polling(rounds: int, count: int = 100) -> list[list[str]]:
    """Promote due jobs to the ready queue. Returns rows of the summary."""
    from django_redis_messaging import DelayQueue
    from django_redis_messaging.core.operations import perform
    from django_redis_messaging.services.jobs.poller import delay_queues

    queue, original = DelayQueue("polling"), Original()

    def due() -> None:
        queue.purge()
        queue.push_many([PAYLOAD] * count, delay=0.001)
        time.sleep(0.002)  # not timed: until they are due

    due()
    *_, last = delay_queues(queue._using)  # the queue that was registered last is the last one
    contest = Contest(f"promote {count} due jobs", rounds)
    contest.add(PING, driver().ping)
    contest.add("sweep", lambda: perform(last.using, last.steps()), prepare=due)
    contest.add(ORIGINAL, lambda: original.poll(count), prepare=lambda: original.delay(count))
    results = contest.run()
    print(results)
    ratio = f"{results['sweep'].ratio * count:.1f} per job"
    return [["due jobs promoted", ratio, f"{results.speedup('sweep', ORIGINAL):.1f} times the original"]]


def running(rounds: int, concurrency: int) -> list[list[str]]:
    """Execute tasks that do nothing in one process, with stored results. Returns rows of the summary."""
    from . import tasks

    workers = {RUN: tasks.work} | ({HUEY: tasks.huey_work} if PEER else {})
    rates: dict[str, list[float]] = {name: [] for name in (PING, *workers)}
    for _ in range(rounds):
        rates[PING].append(tasks.pings())
        for name, work in workers.items():
            rates[name] += processes(1, lambda _, work=work: work(concurrency))  # type: ignore[misc]
    lines = [["", "of PING", "tasks/s"]]
    ratios = {
        name: [one / ping for one, ping in zip(rates[name], rates[PING], strict=True)] for name in rates
    }
    for name in rates:
        ratio, rate = statistics.median(ratios[name]), statistics.median(rates[name])
        lines.append([name, f"{ratio:.2f}", f"{rate:,.0f}"])
    print(f"\nexecute tasks that do nothing, {concurrency} at a time\n{table(lines)}")
    times = ""
    if PEER:
        pairs = zip(rates[RUN], rates[HUEY], strict=True)
        times = f"{statistics.median(ours / theirs for ours, theirs in pairs):.1f} times {HUEY}"
    return [[f"execute, {concurrency} at a time", f"{statistics.median(ratios[RUN]):.2f}", times]]


def lateness(count: int = 1000, seconds: float = 5.0) -> str:
    """Measure how late jobs are that become due over some seconds."""
    from django_redis_messaging import DelayQueue

    queue = DelayQueue("lateness")
    begins = time.time() + 1
    for number in range(count):
        delay = begins + number * seconds / count - time.time()
        queue.push(number, delay=max(delay, 0))
    late: list[float] = []
    while len(late) < count:
        for job in queue.pop(10, wait=2):
            late.append(time.time() - job.due_at.timestamp())
            queue.ack(job)
    low, middle, high = min(late), statistics.median(late), sorted(late)[int(count * 0.99)]
    figures = ", ".join(f"{1000 * one:.1f}" for one in (low, middle, high))
    return f"{count} jobs due over {seconds:g} s: ms late, minimum, median, p99: {figures}"


def sizes(rounds: int, many: int) -> list[list[str]]:
    """Push and pop in a queue with few and in one with many delayed jobs. Returns rows of the summary."""
    from django_redis_messaging import DelayQueue

    few, full = DelayQueue("few"), DelayQueue("full")
    few.push_many([PAYLOAD] * 1000, delay=86_400)
    for _ in range(many // 10_000):
        full.push_many([PAYLOAD] * 10_000, delay=86_400)

    def turn(queue: DelayQueue) -> Callable[[], object]:
        def push_and_pop() -> None:
            queue.push(PAYLOAD, delay=3600)
            queue.push(PAYLOAD)
            [job] = queue.pop(1)
            queue.ack(job)

        return push_and_pop

    contest = Contest(f"push delayed, push, pop, ack: with 1,000 and with {many:,} delayed jobs", rounds)
    contest.add("1,000", turn(few))
    contest.add("many", turn(full))
    results = contest.run()
    print(results)
    return [[f"with {many:,} delayed jobs", "", f"{results['many'].ratio:.2f} times the rate with 1,000"]]


def main(rounds: int, many: int) -> None:
    from django.conf import settings

    summary = [["", "of PING", ""]]
    with server():
        settings.TASKS = {"default": {"BACKEND": "django_redis_messaging.tasks.RedisBackend"}}
        summary += [
            *pushing(rounds),
            *popping(rounds),
            *polling(rounds),
            *running(rounds, 1),
            *running(rounds, 4),
            *running(rounds, 8),
        ]
        if many:
            summary += sizes(rounds, many)
        print(f"\n{table(summary)}\n\n{lateness()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--million", type=int, default=1_000_000, help="delayed jobs in the full queue")
    parser.add_argument("--awake", action="store_true", help="keep the processors awake: a fast machine")
    options = parser.parse_args()
    with awake() if options.awake else nullcontext():
        main(options.rounds, options.million)
