"""Who holds a lock, a read-write lock or a semaphore, and what a latch lacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from ...core.encoding import current_prefix
from ...core.operations import Clock, Command, Script, Steps
from ..common.arguments import to_datetime
from ..common.leases import task_of_token
from ..common.things import Thing
from ..latches.latch import LatchKeys, info_command
from ..latches.latch import parse_info as parse_latch_info
from ..locks.lock import LockInfo, LockKeys, checked_lock_key, lock_key, parse_info
from ..rwlocks.rwlock import ReadWriteLockKeys, info_script
from ..rwlocks.rwlock import parse_info as parse_rwlock_info
from ..semaphores.semaphore import SemaphoreKeys, parse_pairs
from ..semaphores.semaphore import info_script as semaphore_script
from .explanation import Cause, make
from .sights import Sight, Subject

#: holders, and waiting clients, that an explanation names
MAX_LISTED = 10


def lock_subject(thing: Thing, using: str, key: str | None = None) -> Subject:
    """A lock, by its name or its Redis key. Raises InvalidArgument."""
    if key is None and thing.where:
        key = checked_lock_key(thing.where)
    return Subject(thing, using, partial(_read_lock, thing, key))


def rwlock_subject(thing: Thing, using: str) -> Subject:
    """A read-write lock."""
    return Subject(thing, using, partial(_read_rwlock, thing))


def semaphore_subject(thing: Thing, using: str) -> Subject:
    """A semaphore."""
    return Subject(thing, using, partial(_read_semaphore, thing))


def latch_subject(thing: Thing, using: str) -> Subject:
    """A latch."""
    return Subject(thing, using, partial(_read_latch, thing))


def lock_info(name: str, key: str | None = None) -> Steps[LockInfo]:
    """The state of a lock, with the first of its waiting clients."""
    prefix = current_prefix()
    keys = LockKeys(prefix, lock_key(prefix, name) if key is None else key)
    return parse_info((yield Script("locks/info", keys.all, [MAX_LISTED])))


def held(thing: Thing, info: LockInfo, before: Sequence[Cause] = ()) -> Sight:
    """A lock that a client holds: for longer than its task runs, if that was given up."""
    task = task_of_token(info.holder or "")
    cause = make(
        "lock_held",
        thing,
        holder=info.holder,
        since=info.acquired_at,
        lease_until=info.expires_at,
        waiting=info.waiting,
        waiters=info.waiters,
    )
    return Sight([*before, cause], task)


def _read_lock(thing: Thing, key: str | None) -> Steps[Sight]:
    info = yield from lock_info(thing.name, key)
    if info.holder is None:
        return Sight([make("lock_free", thing, waiting=info.waiting)])
    return held(thing, info)


def _read_rwlock(thing: Thing) -> Steps[Sight]:
    keys = ReadWriteLockKeys(current_prefix(), thing.name)
    info = parse_rwlock_info((yield info_script(keys, holders=MAX_LISTED)))
    if not info.holders:
        return Sight([make("lock_free", thing, waiting=info.waiting)])
    tokens = tuple(one.token for one in info.holders)
    # the lease that ends last is listed first
    until, task = info.holders[0].expires_at, next(_tasks(tokens), None)
    if info.writer is not None:
        cause = make(
            "lock_held", thing, holder=info.writer, since=None, lease_until=until, waiting=info.waiting
        )
    else:
        holder = tokens[0]
        cause = make(
            "lock_read", thing, holder=holder, holders=tokens, held=info.readers, lease_until=until,
            waiting=info.waiting,
        )  # fmt: skip
    return Sight([cause], task)


def _read_semaphore(thing: Thing) -> Steps[Sight]:
    script = semaphore_script(SemaphoreKeys(current_prefix(), thing.name), permits=MAX_LISTED)
    stored, count, waiting, permits, _ = yield script
    limit, tokens = None if stored is None else int(stored), tuple(token for token, _ in parse_pairs(permits))
    if count < limit if limit is not None else not count:
        return Sight([make("permits_free", thing, held=count, limit=limit, waiting=waiting)])
    task = next(_tasks(tokens), None)
    holder = str(task) if task else next(iter(tokens), None)
    cause = make(
        "permits_held", thing, holder=holder, holders=tokens, held=count, limit=limit, waiting=waiting
    )
    return Sight([cause], task)


def _read_latch(thing: Thing) -> Steps[Sight]:
    keys = LatchKeys(current_prefix(), thing.name)
    clock, reply, ttl = yield [
        Clock(keys.state),
        info_command(keys),
        Command("PTTL", keys.state, reads=True),
    ]
    info = parse_latch_info(reply)
    if info is None:
        return Sight([make("unknown", thing)], exists=False)
    expires_at = to_datetime(Clock.milliseconds(clock) + max(ttl, 0))
    code = "latch_closed" if info.remaining else "latch_open"
    return Sight([make(code, thing, count=info.count, remaining=info.remaining, expires_at=expires_at)])


def _tasks(tokens: Sequence[str]) -> Iterator[Thing]:
    """The tasks among holders."""
    return (task for token in tokens if (task := task_of_token(token)) is not None)
