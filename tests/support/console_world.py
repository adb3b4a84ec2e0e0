"""Something of each kind that the console shows, for tests in a browser."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from django.contrib.auth.models import User

from django_redis_messaging import (
    Broadcast,
    Chat,
    DelayQueue,
    Directory,
    Expiry,
    FileChannel,
    Latch,
    Lock,
    Mailbox,
    RateLimit,
    ReadWriteLock,
    Semaphore,
    conf,
)
from django_redis_messaging.core.operations import perform
from django_redis_messaging.services.audit import AuditTrail
from django_redis_messaging.services.common.things import Thing
from django_redis_messaging.services.history.gauges import record_gauges
from django_redis_messaging.services.history.keys import HistoryKeys, Series, level_of
from django_redis_messaging.services.live.presence import Presence
from django_redis_messaging.tasks import Schedules, schedules, task
from django_redis_messaging.tasks.occurrences import enqueue_due

from ..tasks import jobs
from .console import HOSTILE
from .server import server, until
from .workers import at_work, backend, burst, later

#: slots of history: those of half an hour
SLOTS = 180


@task(lock="shelf {shelf}")
def count_shelf(shelf: int) -> None:
    """Holds a lock until the test ends."""
    jobs.go.wait(120)


@contextmanager
def lively(owner: User, other: User, directory: Path) -> Iterator[dict[str, Thing]]:
    """A site at work; returns a thing for each page of one, by the name of the page."""
    things = add_jobs()
    add_timers(things)
    add_channels(owner, other, directory, things)
    add_history()
    AuditTrail().record(owner.username, "purge", str(Thing("queue", HOSTILE)), number=3, detail=HOSTILE)
    with ExitStack() as stack:
        stack.enter_context(at_work("default", concurrency=2))
        stack.callback(jobs.go.set)
        until(lambda: server_counts() == (1, 1) and backend().workers())
        things["worker"] = Thing("worker", backend().workers()[0].id, "default")
        add_locks(stack, things)
        perform(conf.alias(), record_gauges(conf.alias(), conf.prefix()))
        yield things


def server_counts() -> tuple[int, int]:
    """How many jobs run, and how many are parked."""
    [load] = [one for one in backend().stats() if one.queue == "default"]
    return load.leased, load.parked


def add_jobs() -> dict[str, Thing]:
    """Jobs in all places; those that wait for a worker are in a queue without one."""
    jobs.go.clear()
    for text in ("no", HOSTILE, "never", "out of paper"):
        jobs.fail.using(max_attempts=1).enqueue(text)
    jobs.echo.enqueue("done")
    burst()
    dead = next(iter(backend().jobs("default").page("dead").rows)).id
    _running, parked = count_shelf.enqueue(3), count_shelf.enqueue(3)
    other = jobs.echo.using(queue_name="other")
    ready = other.enqueue(17, to=HOSTILE, api_key="5f2c", long="word " * 500)
    delayed = [other.using(run_after=later()).enqueue(number) for number in range(3)]
    backend().pause(
        "other", f"The archive is being moved to other servers, {'see the ticket, ' * 8}{HOSTILE}", by="ann"
    )
    DelayQueue(HOSTILE).push(HOSTILE)
    job = DelayQueue("mail").push({"to": "ann@example.com", "password": "hunter2"})
    tasks = {"dead": dead, "parked": parked.id, "ready": ready.id}
    tasks |= {f"delayed {number}": one.id for number, one in enumerate(delayed)}
    return {
        **{name: Thing("task", id, "default") for name, id in tasks.items()},
        "task": Thing("task", dead, "default"),
        "queue": Thing("queue", "default", "default"),
        "other": Thing("queue", "other", "default"),
        "mail": Thing("queue", "mail"),
        "job": Thing("job", job, "mail"),
    }


def add_timers(things: dict[str, Thing]) -> None:
    """Timers, and periodic tasks with a poller."""
    for name in ("17", "18"):
        Expiry("order").start(name, 3600, {"total": 12, "token": "hunter2"})
        things[f"timer {name}"] = things["timer"] = Thing("timer", name, "order")
    Expiry("order").start("now", 0.001)
    Expiry(HOSTILE).start(HOSTILE, 3600, HOSTILE)
    for name in ("report", HOSTILE):
        Schedules().add(name, jobs.echo, every=3600, args=[name])
    things["periodic"] = Thing("periodic", "report", "default")
    perform(backend().using, enqueue_due(backend(), schedules.tasks_of("default")))


def add_locks(stack: ExitStack, things: dict[str, Thing]) -> None:
    """Locks of all kinds that are held, two of them with a waiting client, and rates that are used up."""
    for name in ("nightly", HOSTILE):
        assert Lock(name, timeout=600).acquire(blocking=False, token=f"holder of {name}")
    assert Semaphore("printers", 1, timeout=600).acquire(blocking=False)
    assert ReadWriteLock("catalogue", timeout=600).read.acquire(blocking=False)
    nightly, printers = Lock("nightly"), Semaphore("printers", 1)
    stack.enter_context(waiting(lambda: Lock("nightly").acquire(True, 90), lambda: nightly.info().waiting))
    stack.enter_context(
        waiting(lambda: Semaphore("printers", 1).acquire(True, 90), lambda: printers.info().waiting)
    )
    stack.callback(nightly.release_holder, "holder of nightly")
    stack.callback(lambda: [printers.release_holder(one.token) for one in printers.holders()])
    Latch("import", 3).count_down(2)
    for key in ("ann", HOSTILE):
        RateLimit("login", "5/h").take(key, 5)
    for kind, name in (
        ("lock", "nightly"), ("rwlock", "catalogue"), ("semaphore", "printers"), ("latch", "import"),
    ):  # fmt: skip
        things[kind] = Thing(kind, name)
    things["rate"] = Thing("rate", "ann", "login")


@contextmanager
def waiting(acquire: Callable[[], object], number: Callable[[], int]) -> Iterator[None]:
    """Another thread acquires something during the block; `number`: how many clients wait for it."""
    before = number()
    thread = threading.Thread(target=acquire, daemon=True)
    thread.start()
    until(lambda: number() > before)
    try:
        yield
    finally:
        thread.join(60)


def add_channels(owner: User, other: User, directory: Path, things: dict[str, Thing]) -> None:
    """Chats, mailboxes, channels, a directory and live streams."""
    ann, bob = str(owner.pk), str(other.pk)
    team = Chat.create(ann, [bob], "Hello", title="Team", keep_last=1)
    for number in range(5):
        team.send(ann, f"Message {number}")
    Chat.create(HOSTILE, [ann], HOSTILE, title=HOSTILE, chat_id=HOSTILE)
    Mailbox(bob).send({"text": "Hello", "api_key": "5f2c"}, sender=ann)
    shop = Broadcast("shop")
    shop.publish({"price": 12})
    shop.keep("site", shop.cursor())
    (directory / "log").write_text("a line\n")
    FileChannel("logs").publish(directory / "log", consumers=["counter", HOSTILE])
    Directory("staff").add(ann, "Ann Smith")
    Directory(HOSTILE).add(HOSTILE, HOSTILE)
    Presence().enter(ann, "token")
    things["chat"], things["mailbox"] = Thing("chat", team.id), Thing("mailbox", bob)
    for kind, name in (("broadcast", "shop"), ("files", "logs"), ("directory", "staff")):
        things[kind] = Thing(kind, name)


def add_history() -> None:
    """Half an hour of what has ended."""
    keys = HistoryKeys(conf.prefix())
    for series in (Series("queue", "default", "default"), Series("task", "shop.tasks.pack", "default")):
        levels = series.columns.percentiles
        add_slots(
            keys,
            series,
            [
                {"ran": 20 + number % 7, "failed": number % 5 // 4}
                | {name: level_of(0.01 * (1 + number % 11)) for name in levels}
                for number in range(SLOTS)
            ],
        )


def add_slots(keys: HistoryKeys, series: Series, slots: Sequence[dict[str, int]], seconds: int = 10) -> None:
    """Store slots of ten seconds, or of a minute, before those that are there, as the scripts do."""
    now, words = int(time.time()), list[int]()
    for number, slot in enumerate(slots):
        names = series.columns.names if seconds == 10 else series.columns.names[: series.columns.coarse]
        columns = dict.fromkeys(names, 0) | slot
        words += [now // seconds * seconds - seconds * (len(slots) - number), *columns.values()]
    server().lpush(keys.slots(str(series), seconds), *reversed(words))
    server().zadd(keys.series, {str(series): now * 1000})
