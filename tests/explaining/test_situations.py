"""`explain` in situations that were built, each with the chain of causes that is expected."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest
from django.utils import timezone

from django_redis_messaging import (
    Broadcast,
    Chat,
    Choices,
    DelayQueue,
    Expiry,
    Explanation,
    FileChannel,
    Latch,
    Lock,
    Mailbox,
    RateLimit,
    ReadWriteLock,
    Semaphore,
    Thing,
    aexplain,
    conf,
    explain,
)
from django_redis_messaging.services.explaining.explanation import WORDINGS
from django_redis_messaging.services.files.keys import lease_key
from django_redis_messaging.services.jobs.engine import Outcome
from django_redis_messaging.tasks import Schedules
from tests.support.engines import timers
from tests.support.schedules import enqueued, poll
from tests.support.server import let_pass, server, until
from tests.support.workers import keys

from ..support.round_trips import round_trips
from ..tasks import jobs
from .site import LONG, SECRET, TASK, Site, build_chain, inside, lock_inside, task

#: code and thing of each cause
Chain = list[tuple[str, str]]
#: builds a situation; returns what to explain, and the chain
Build = Callable[[Site], tuple[Any, Chain]]

DEFAULT = "queue:default/default"
SITUATIONS: dict[str, Build] = {}


def situation(build: Build) -> Build:
    SITUATIONS[build.__name__] = build
    return build


# Tasks that wait by themselves


@situation
def unknown(site: Site) -> tuple[Any, Chain]:
    return "0abc", [("unknown", "task:default/0abc")]


@situation
def not_due(site: Site) -> tuple[Any, Chain]:
    site.beat()
    return site.push("a", delay=LONG), [("not_due", "task:default/a")]


@situation
def in_backoff(site: Site) -> tuple[Any, Chain]:
    site.run("a")
    site.beat()
    site.end("a", Outcome.RETRY, LONG, f'E["builtins.ValueError","ValueError: {SECRET}"]')
    return "a", [("retrying", "task:default/a")]


@situation
def next_to_be_claimed(site: Site) -> tuple[Any, Chain]:
    site.beat()
    return str(site.push("a")), [("next", "task:default/a")]


@situation
def behind_others(site: Site) -> tuple[Any, Chain]:
    site.beat()
    for name in ("a", "b", "c"):
        site.push(name)
    return task("c"), [("behind", "task:default/c")]


@situation
def without_worker(site: Site) -> tuple[Any, Chain]:
    site.beat("w1", "other")
    return site.push("a"), [("no_worker", DEFAULT)]


@situation
def in_another_queue_than_the_likeliest(site: Site) -> tuple[Any, Chain]:
    site.beat()
    site.push("a", queue="other")
    return site.push("b", queue="other"), [("behind", "task:default/b")]


@situation
def queue_and_task_are_paused(site: Site) -> tuple[Any, Chain]:
    site.beat()
    site.engine.pause("the provider is down", "ann", queue="default")
    site.engine.pause("", "", task=TASK)
    return site.push("a"), [("queue_paused", DEFAULT), ("task_paused", "task:default/a")]


@situation
def parked_by_a_paused_task(site: Site) -> tuple[Any, Chain]:
    site.beat()
    site.engine.pause("", "bob", task=TASK)
    site.run("a")
    return "a", [("task_paused", "task:default/a")]


@situation
def paused_and_not_due(site: Site) -> tuple[Any, Chain]:
    site.engine.pause("", "", queue="default")
    waiting = site.push("a", delay=LONG)
    return waiting, [("not_due", "task:default/a"), ("queue_paused", DEFAULT)]


# Tasks that need something


@situation
def lock_of_another_task(site: Site) -> tuple[Any, Chain]:
    site.run("a", "lock:nightly")
    site.beat(running=1)
    site.push("b", "lock:nightly")
    site.claim()
    return "b", [("lock_held", "lock:nightly"), ("running", "task:default/a")]


@situation
def lock_of_a_task_that_is_lost(site: Site) -> tuple[Any, Chain]:
    site.run("a", "lock:nightly", worker="gone")
    site.beat()
    return site.push("b", "lock:nightly"), [("lock_held", "lock:nightly"), ("worker_lost", "task:default/a")]


@situation
def lock_of_other_code(site: Site) -> tuple[Any, Chain]:
    site.beat()
    Lock("nightly", timeout=None).acquire()
    site.run("a", "lock:nightly")
    site.end("a", Outcome.RELEASE)  # as the worker does that can't acquire it
    return "a", [("lock_held", "lock:nightly")]


@situation
def permits(site: Site) -> tuple[Any, Chain]:
    site.beat(running=2)
    for name in ("a", "b"):
        site.run(name, "permit:ex%20ports/2")
    chain = [("permits_held", "permit:default/ex%20ports"), ("running", "task:default/a")]
    return site.push("c", "permit:ex%20ports/2"), chain


@situation
def permits_with_another_limit(site: Site) -> tuple[Any, Chain]:
    site.beat()
    site.engine.set_limit("exports", 0)
    return site.push("c", "permit:exports/2"), [("permits_held", "permit:default/exports")]


@situation
def rate(site: Site) -> tuple[Any, Chain]:
    site.beat()
    site.run("a", "rate:mails/1/3600000")
    return site.push("b", "rate:mails/1/3600000"), [("rate_used_up", "task:default/b")]


@situation
def free_needs(site: Site) -> tuple[Any, Chain]:
    site.beat()
    return site.push("a", "lock:x", "permit:y/2", "rate:z/1/1000"), [("next", "task:default/a")]


@situation
def task_lock_task_permit(site: Site) -> tuple[Any, Chain]:
    """From a task to a lock, the task that has it, what that waits for, and the task that has that."""
    site.beat(running=1)
    site.run("holder", "permit:exports/1")
    site.push("middle", "permit:exports/1")
    lock_inside("middle", "nightly")  # in an attempt before
    chain = [
        ("lock_held", "lock:nightly"),
        ("permits_held", "permit:default/exports"),
        ("running", "task:default/holder"),
    ]
    return site.push("a", "lock:nightly"), chain


@situation
def own_lock_of_an_earlier_attempt(site: Site) -> tuple[Any, Chain]:
    site.beat()
    lock_inside("a", "nightly", timeout=None)
    return site.push("a", "lock:nightly"), [("lock_held", "lock:nightly"), ("deadlock", "task:default/a")]


@situation
def circle_of_two(site: Site) -> tuple[Any, Chain]:
    site.beat()
    lock_inside("a", "one")
    lock_inside("b", "two")
    site.push("b", "lock:one")
    chain = [("lock_held", "lock:two"), ("lock_held", "lock:one"), ("deadlock", "task:default/a")]
    return site.push("a", "lock:two"), chain


@situation
def long_chain(site: Site) -> tuple[Any, Chain]:
    site.beat()
    build_chain(site)
    chain = [("lock_held", f"lock:l{number}") for number in range(4)]
    return task("t0"), [*chain, ("more", "task:default/t4")]


# Tasks that run or have ended


@situation
def running(site: Site) -> tuple[Any, Chain]:
    site.run("a")
    site.beat(running=1)
    return "a", [("running", "task:default/a")]


@situation
def running_and_cancelled(site: Site) -> tuple[Any, Chain]:
    site.run("a")
    site.beat(running=1)
    site.engine.cancel("default", "a", ttl=LONG, running=True)
    return "a", [("running", "task:default/a"), ("cancelling", "task:default/a")]


@situation
def worker_lost(site: Site) -> tuple[Any, Chain]:
    site.run("a", worker="gone")
    site.beat()
    return "a", [("worker_lost", "task:default/a")]


@situation
def lease_expired_and_no_worker(site: Site) -> tuple[Any, Chain]:
    site.run("a", lease=1)
    until(lambda: site.engine.stats("default")[0] == 1)
    return "a", [("lease_expired", "task:default/a"), ("no_worker", DEFAULT)]


@situation
def dead(site: Site) -> tuple[Any, Chain]:
    site.run("a")
    site.end("a", Outcome.DEAD, 0, f'E["shop.errors.Gone","{SECRET}"]')
    return "a", [("dead", "task:default/a")]


@situation
def succeeded(site: Site) -> tuple[Any, Chain]:
    site.run("a")
    site.end("a", line=f'R"{SECRET}"')
    return "a", [("succeeded", "task:default/a")]


@situation
def cancelled(site: Site) -> tuple[Any, Chain]:
    site.push("a")
    site.engine.cancel("default", "a", ttl=LONG, line="C")
    return "a", [("cancelled", "task:default/a")]


@situation
def expired(site: Site) -> tuple[Any, Chain]:
    site.push("a", more=" expires=1")
    return "a", [("expired", "task:default/a")]


# Delay queues and timers


@situation
def job_behind_another(site: Site) -> tuple[Any, Chain]:
    queue = DelayQueue("mail")
    queue.push(SECRET, job_id="first")
    queue.push(SECRET, job_id="se/cond")
    return "job:mail/se%2Fcond", [("behind", "job:mail/se%2Fcond")]


@situation
def job_of_a_paused_queue(site: Site) -> tuple[Any, Chain]:
    queue = DelayQueue("mail")
    queue.push(SECRET, job_id="first")
    queue.pause("deploy")
    return Thing("job", "first", "mail"), [
        ("queue_paused", "queue:mail"),
    ]


@situation
def popped_job(site: Site) -> tuple[Any, Chain]:
    queue = DelayQueue("mail")
    queue.push(SECRET, job_id="first")
    return queue.pop()[0], [("running", "job:mail/first")]


@situation
def dead_job(site: Site) -> tuple[Any, Chain]:
    queue = DelayQueue("mail")
    queue.push(SECRET, job_id="first")
    queue.fail(queue.pop()[0], "no such address")
    return queue.dead()[0], [("dead", "job:mail/first")]


@situation
def timer_not_due(site: Site) -> tuple[Any, Chain]:
    Expiry("or der").start("1:7", 3600, SECRET)
    return Thing("timer", "1:7", "or der"), [("not_due", "timer:or%20der/1:7")]


def overdue(name: str) -> None:
    Expiry("order").start(name, 0.001, SECRET)
    until(lambda: Expiry("order").remaining(name) == 0)
    let_pass(1)  # what remains is rounded down


@situation
def timer_without_listener(site: Site) -> tuple[Any, Chain]:
    overdue("17")
    return "timer:order/17", [("no_listener", "timer:order/17")]


@situation
def overdue_timer_with_a_listener(site: Site) -> tuple[Any, Chain]:
    timers().beat("l1", consumed=True, started=0, running=0, done=0, ended={"order": 0})
    overdue("17")
    return "timer:order/17", [("next", "timer:order/17")]


@situation
def no_timer(site: Site) -> tuple[Any, Chain]:
    return "timer:order/none", [("unknown", "timer:order/none")]


# Locks, queues, permits


@situation
def held_lock(site: Site) -> tuple[Any, Chain]:
    lock = Lock("a b", key="{shop}:stock")
    lock.acquire()
    return lock, [("lock_held", "lock:a%20b")]


@situation
def lock_held_inside_a_task(site: Site) -> tuple[Any, Chain]:
    site.run("a")
    site.beat(running=1)
    lock_inside("a", "nightly")
    return "lock:nightly", [("lock_held", "lock:nightly"), ("running", "task:default/a")]


@situation
def lock_of_another_site(site: Site) -> tuple[Any, Chain]:
    token = "web1:17:fea3e129e51a00c2:task:elsewhere/a"
    Lock("nightly").acquire(token=token)
    return "lock:nightly", [("lock_held", "lock:nightly")]


@situation
def free_lock(site: Site) -> tuple[Any, Chain]:
    return "lock:nightly", [("lock_free", "lock:nightly")]


@situation
def read_write_lock(site: Site) -> tuple[Any, Chain]:
    lock = ReadWriteLock("catalogue", timeout=3600)
    site.run("a")
    site.beat(running=1)
    inside("a", lock.read.acquire)
    return lock, [("lock_read", "rwlock:catalogue"), ("running", "task:default/a")]


@situation
def written_lock(site: Site) -> tuple[Any, Chain]:
    lock = ReadWriteLock("catalogue")
    lock.write.acquire()
    return lock.write, [("lock_held", "rwlock:catalogue")]


@situation
def semaphore(site: Site) -> tuple[Any, Chain]:
    printer = Semaphore("printer", 1, timeout=3600)
    site.run("a")
    site.beat(running=1)
    inside("a", printer.acquire)
    return printer, [("permits_held", "semaphore:printer"), ("running", "task:default/a")]


@situation
def free_semaphore(site: Site) -> tuple[Any, Chain]:
    return "semaphore:printer", [("permits_free", "semaphore:printer")]


@situation
def semaphore_without_permits(site: Site) -> tuple[Any, Chain]:
    Semaphore("printer", 1).set_limit(0)
    return "semaphore:printer", [("permits_held", "semaphore:printer")]


@situation
def key_without_permits(site: Site) -> tuple[Any, Chain]:
    site.engine.set_limit("exports", 0)
    return "permit:default/exports", [("permits_held", "permit:default/exports")]


@situation
def permit(site: Site) -> tuple[Any, Chain]:
    site.run("a", "permit:ex%2Fports/1")
    site.beat(running=1)
    chain = [("permits_held", "permit:default/ex%2Fports"), ("running", "task:default/a")]
    return Thing("permit", "ex/ports", "default"), chain


@situation
def busy_queue(site: Site) -> tuple[Any, Chain]:
    site.push("a")
    site.beat(running=4)
    return DEFAULT, [("workers_busy", DEFAULT), ("backlog", DEFAULT)]


@situation
def paused_queue_without_worker(site: Site) -> tuple[Any, Chain]:
    site.engine.pause("", "", queue="default")
    chain = [("queue_paused", DEFAULT), ("no_worker", DEFAULT), ("nothing_ready", DEFAULT)]
    return DEFAULT, chain


@situation
def queue_with_parked_jobs(site: Site) -> tuple[Any, Chain]:
    site.beat()
    site.run("a", "lock:x")
    site.run("b", "lock:x")
    return DEFAULT, [("parked", DEFAULT)]


@situation
def delay_queue(site: Site) -> tuple[Any, Chain]:
    queue = DelayQueue("mail")
    queue.push(SECRET)
    return queue, [("backlog", "queue:mail")]


@situation
def pause(site: Site) -> tuple[Any, Chain]:
    DelayQueue("mail").pause("deploy")
    return DelayQueue("mail").paused(), [("queue_paused", "queue:mail")]


# Periodic tasks


def add_schedule(name: str = "report", *, every: int = LONG, due: bool = False) -> None:
    """Store a schedule that a poller has seen; `due`: since one interval."""
    Schedules().add(name, jobs.echo, every=every, args=[SECRET])
    until(poll)  # the first look may only read the schedule
    if due:
        handled, rest = server().hget(keys().periodic, f"schedule:{name}").split(b" ", 1)
        moved = b"%d %s" % (int(handled) - every * 1000, rest)
        server().hset(keys().periodic, f"schedule:{name}", moved)


def end_polls() -> None:
    """Let the latest look of a poller be long ago."""
    server().hset(keys().periodic, "polled", 1)


PERIODIC = "periodic:default/report"


@situation
def no_schedule(site: Site) -> tuple[Any, Chain]:
    return "periodic:default/re%2Fport", [("unknown", "periodic:default/re%2Fport")]


@situation
def periodic_task_not_due(site: Site) -> tuple[Any, Chain]:
    add_schedule("a b/c")
    return Thing("periodic", "a b/c", "default"), [("not_due", "periodic:default/a%20b%2Fc")]


@situation
def periodic_task_without_poller(site: Site) -> tuple[Any, Chain]:
    Schedules().add("report", jobs.echo, every=LONG, args=[SECRET])
    return PERIODIC, [("no_poller", PERIODIC), ("not_due", PERIODIC)]


@situation
def periodic_task_that_pollers_no_longer_enqueue(site: Site) -> tuple[Any, Chain]:
    add_schedule(due=True)
    end_polls()
    return PERIODIC, [("no_poller", PERIODIC), ("overdue", PERIODIC)]


@situation
def paused_schedule(site: Site) -> tuple[Any, Chain]:
    add_schedule()
    Schedules().pause("report")
    end_polls()
    return PERIODIC, [("schedule_paused", PERIODIC)]


@situation
def periodic_task_whose_queue_and_task_are_paused(site: Site) -> tuple[Any, Chain]:
    add_schedule()
    site.engine.pause("deploy", "ann", queue="default")
    site.engine.pause("", "", task=jobs.echo.module_path)
    chain = [("not_due", PERIODIC), ("queue_paused", DEFAULT), ("task_paused", PERIODIC)]
    return PERIODIC, chain


@situation
def schedule_of_an_unknown_task(site: Site) -> tuple[Any, Chain]:
    add_schedule()
    record = server().hget(keys().schedules, "report")
    server().hset(keys().schedules, "report", record.replace(b"jobs.echo", b"jobs.gone"))
    return PERIODIC, [("schedule_broken", PERIODIC)]


@situation
def periodic_task_whose_latest_call_waits(site: Site) -> tuple[Any, Chain]:
    add_schedule(due=True)
    poll()
    site.engine.pause("deploy", "ann", queue="default")
    site.beat()
    chain = [("not_due", PERIODIC), ("latest_call", PERIODIC), ("queue_paused", DEFAULT)]
    return PERIODIC, chain


@situation
def periodic_task_whose_latest_call_is_dead(site: Site) -> tuple[Any, Chain]:
    add_schedule(due=True)
    poll()
    [call] = enqueued()
    site.claim()
    site.end(call, Outcome.DEAD, 0, f'E["shop.errors.Gone","{SECRET}"]')
    return PERIODIC, [("not_due", PERIODIC), ("latest_call", PERIODIC), ("dead", f"task:default/{call}")]


@situation
def periodic_task_whose_latest_call_has_ended(site: Site) -> tuple[Any, Chain]:
    add_schedule(due=True)
    poll()
    site.claim()
    site.end(enqueued()[0])
    return PERIODIC, [("not_due", PERIODIC)]


# Workers

WORKER = "worker:default/w1"


def age_heartbeat() -> None:
    """Let the heartbeat of w1 be ten minutes old."""
    beat, rest = server().hget(keys().workers, "w1").split(b" ", 1)
    server().hset(keys().workers, "w1", b"%d %s" % (int(beat) - 600_000, rest))


@situation
def no_worker_of_this_name(site: Site) -> tuple[Any, Chain]:
    site.beat("w2")
    return WORKER, [("unknown", WORKER)]


@situation
def idle_worker(site: Site) -> tuple[Any, Chain]:
    site.beat()
    site.run("a", worker="w2")
    return WORKER, [("worker_idle", WORKER)]


@situation
def worker_whose_jobs_are_not_among_those_read(site: Site) -> tuple[Any, Chain]:
    site.beat(running=1)
    for number in range(60):
        site.run(f"j{number}", worker="w2")
    site.run("own")
    return WORKER, [("worker_busy", WORKER)]


@situation
def worker_that_claims_nothing(site: Site) -> tuple[Any, Chain]:
    site.engine.beat("w1", consumed=False, started=1, running=0, done=0, ended={})
    return WORKER, [("not_consuming", WORKER)]


@situation
def busy_worker(site: Site) -> tuple[Any, Chain]:
    for name in ("a", "b"):
        site.run(name)
    site.beat(running=2)
    return Thing("worker", "w1", "default"), [("running", "task:default/a"), ("running", "task:default/b")]


@situation
def silent_worker(site: Site) -> tuple[Any, Chain]:
    site.run("a")
    site.run("b", lease=1)
    until(lambda: site.engine.stats("default")[0] == 1)
    site.beat(running=1)
    age_heartbeat()
    chain = [
        ("worker_silent", WORKER),
        ("worker_lost", "task:default/a"),
        ("lease_expired", "task:default/b"),
    ]
    return WORKER, chain


# Latches and rate limits


@situation
def closed_latch(site: Site) -> tuple[Any, Chain]:
    latch = Latch("import 7", 3)
    latch.count_down()
    return latch, [("latch_closed", "latch:import%207")]


@situation
def open_latch(site: Site) -> tuple[Any, Chain]:
    Latch("import", 1).count_down()
    return "latch:import", [("latch_open", "latch:import")]


@situation
def no_latch(site: Site) -> tuple[Any, Chain]:
    return "latch:import", [("unknown", "latch:import")]


@situation
def used_up_rate_limit(site: Site) -> tuple[Any, Chain]:
    site.declare("log/in", "1/h").take("ann")
    return Thing("rate", "ann", "log/in"), [("rate_used_up", "rate:log%2Fin/ann")]


@situation
def unused_rate_limit(site: Site) -> tuple[Any, Chain]:
    site.declare("log/in", "1/h").take("ann")
    return Thing("rate", "bob", "log/in"), [("rate_free", "rate:log%2Fin/bob")]


@situation
def rate_limit_of_the_app(site: Site) -> tuple[Any, Chain]:
    return "rate:user:send/42", [("rate_free", "rate:user:send/42")]


@situation
def rate_limit_of_other_code(site: Site) -> tuple[Any, Chain]:
    RateLimit("webhook", "1/h").take("shop")
    return "rate:webhook/shop", [("rate_unknown", "rate:webhook/shop")]


@situation
def rate_limit_that_was_never_seen(site: Site) -> tuple[Any, Chain]:
    return "rate:webhook/shop", [("rate_unknown", "rate:webhook/shop")]


# Readers


def publish(consumers: list[str] | int) -> FileChannel:
    """Publish a file."""
    with NamedTemporaryFile(prefix=SECRET) as file:
        file.write(SECRET.encode())
        file.flush()
        FileChannel("lo gs").publish(file.name, consumers=consumers)
    return FileChannel("lo gs")


def receive(consumer: str) -> None:
    """Ack the first file."""
    with closing(FileChannel("lo gs").consume(consumer)) as files:
        next(files).ack()


FILES = "files:lo%20gs"


@situation
def files_that_two_consumers_have_not_acked(site: Site) -> tuple[Any, Chain]:
    channel = publish(["a", "b", "c"])
    receive("b")
    return channel, [("files_unread", FILES), ("files_unread", FILES)]


@situation
def files_that_a_task_consumes(site: Site) -> tuple[Any, Chain]:
    site.run("t")
    site.beat(running=1)
    publish(["a", "b"])
    receive("b")
    lock_inside("t", "files", key=lease_key(conf.prefix(), "lo gs", "a"))
    return FILES, [("files_unread", FILES), ("running", "task:default/t")]


@situation
def files_of_a_consumer_that_stopped(site: Site) -> tuple[Any, Chain]:
    publish(1)
    receive("a")
    publish(1)
    return FILES, [("files_unread", FILES)]


@situation
def files_for_consumers_to_come(site: Site) -> tuple[Any, Chain]:
    publish(2)
    return FILES, [("consumers_missing", FILES)]


@situation
def acked_files(site: Site) -> tuple[Any, Chain]:
    publish(["a"])
    receive("a")
    return FILES, [("all_read", FILES)]


@situation
def no_file_channel(site: Site) -> tuple[Any, Chain]:
    return FILES, [("unknown", FILES)]


EVENTS = "broadcast:set%20tings"


@situation
def events_that_consumers_have_not_handled(site: Site) -> tuple[Any, Chain]:
    channel = Broadcast("set tings")
    channel.keep("begun", channel.cursor())
    for _ in range(2):
        channel.keep("last", channel.publish(SECRET).cursor)
    channel.keep("first", channel.fetch(limit=1).cursor)
    return channel, [("events_unread", EVENTS), ("events_unread", EVENTS)]


@situation
def handled_events(site: Site) -> tuple[Any, Chain]:
    channel = Broadcast("set tings")
    channel.keep("last", channel.publish(SECRET).cursor)
    return EVENTS, [("all_read", EVENTS)]


@situation
def consumers_among_many_keys(site: Site) -> tuple[Any, Chain]:
    channel = Broadcast("set tings")
    channel.publish(SECRET)
    server().mset({f"{channel._keys.tag}:filler:{number}": "" for number in range(20_000)})
    return EVENTS, [("search_ended", EVENTS)]


@situation
def no_broadcast_channel(site: Site) -> tuple[Any, Chain]:
    return EVENTS, [("unknown", EVENTS)]


@situation
def chat(site: Site) -> tuple[Any, Chain]:
    room = Chat.create("ann", ["bob", "cem", "eve"], SECRET, chat_id="room")
    room.mute("bob", timezone.now() + timedelta(hours=1))
    Choices().choose("cem", receipts=False)
    Chat("room").ack("eve", 1)
    return room, [("unread", "chat:room"), ("hidden_readers", "chat:room")]


@situation
def read_chat(site: Site) -> tuple[Any, Chain]:
    Chat.create("ann", [], SECRET, chat_id="room")
    return "chat:room", [("all_read", "chat:room")]


@situation
def mailbox(site: Site) -> tuple[Any, Chain]:
    Mailbox("ann").send(SECRET)
    return Mailbox("ann"), [("mail_unread", "mailbox:ann")]


@situation
def empty_mailbox(site: Site) -> tuple[Any, Chain]:
    return "mailbox:ann", [("all_read", "mailbox:ann")]


@pytest.fixture
def site(messaging_alias: str) -> Site:
    return Site()


def chain_of(found: Explanation) -> Chain:
    return [(cause.code, str(cause.thing)) for cause in found.causes]


@pytest.mark.parametrize("build", SITUATIONS.values(), ids=SITUATIONS)
async def test_situation(build: Build, site: Site, closing: None) -> None:
    """Both forms have the chain, which tells no secrets, and take few round trips."""
    thing, expected = build(site)
    before = server().dbsize()
    found = explain(thing)
    assert chain_of(found) == expected
    assert chain_of(await aexplain(thing)) == expected
    assert server().dbsize() == before
    assert round_trips(lambda: explain(thing)) <= 9
    assert SECRET not in json.dumps(found.to_json())
    texts = [found.text, *(cause.ends for cause in found.causes)]
    assert not re.search(r"%\(|\bNone\b", " ".join(texts))
    assert found.text.endswith(".")


@pytest.mark.one_server
def test_each_code_has_a_situation() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert [code for code in WORDINGS if f'("{code}", ' not in text] == []
