"""Locks: one thread or task, of all processes, holds a lock at a time."""

from __future__ import annotations

import functools
import logging
import math
import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from time import monotonic
from typing import Any, Literal
from urllib.parse import unquote

from ...core import after_fork, encoding
from ...core.commands import Argument
from ...core.encoding import FORMAT, encoded, name, tag
from ...core.operations import Command, Confirmation, Listen, Script, Steps, asynchronous, operation
from ...core.outcome import Unconfirmed, deadline
from ...errors import (
    ConfigurationError,
    InvalidArgument,
    LeaseLost,
    LimitExceeded,
    LockError,
    LockNotOwnedError,
    MessagingError,
    OutcomeUnknown,
    Unavailable,
)
from ..common.arguments import Duration, callback, flag, integer, milliseconds, to_datetime
from ..common.leases import Leasable, Owned, Owners, RenewedLease, SharedOwner, current_owner, new_token
from ..common.waiters import Waiters, waiters

#: number of wake-up keys that a lock's waiting clients share; with more clients, several wake up together
RING = 8
logger = logging.getLogger(__name__)

#: maximum number of clients that wait for one lock
MAX_WAITING = 10_000
#: seconds between two polls that keep a waiting client in the queue
KEEP_INTERVAL = 0.5
#: ms for which a release is remembered, so that it can be repeated
RELEASE_TTL = 60_000
#: seconds before the end of blocking_timeout at which the last poll is sent, to leave time for its reply;
#: at most a tenth of blocking_timeout
FINAL_POLL_MARGIN = 0.01
#: seconds; the deadline for leaving the queue after an interrupt
LEAVE_DEADLINE = 0.5
#: seconds within which `replicas` must confirm a lease, and part of the lease that this may take at most
CONFIRM_TIMEOUT, CONFIRM_PART = 1.0, 0.5
#: maximum number of replicas
MAX_REPLICAS = 100
#: maximum number of waiting clients that `info` lists
MAX_LISTED = 100


class LockKeys:
    """The keys of one lock, in one slot.

    >>> LockKeys("site", "site:2:{lock:report}").fence
    'site:2:{lock:report}:fence'
    >>> LockKeys("site", "shop:lock").fence
    'site:2:{shop:lock}:lock:fence'
    >>> LockKeys("site", "shop:{7}:a b").fence
    'site:2:{7}:lock:shop%3A%7B7%7D%3Aa%20b:fence'
    """

    def __init__(self, prefix: str, key: str) -> None:
        self._key = key
        self._base = _base(prefix, key)

    @property
    def key(self) -> str:
        """STRING: the holder's token. Expires with the lease; without a lease it stays until the release."""
        return self._key

    @property
    def fence(self) -> str:
        """STRING "fence request token": the fence and token of the latest acquire, and the request id of
        the latest extension of it, or -. Expires a day after the latest acquire or extension, after twice the
        lease if that is longer, or after 30 days without a lease."""
        return self._base + ":fence"

    @property
    def line(self) -> str:
        """ZSET token → ticket: the waiting clients, in order. Expires when none of them polls any more."""
        return self._base + ":line"

    @property
    def seen(self) -> str:
        """ZSET token → ms: when each waiting client last polled. Expires with the queue."""
        return self._base + ":seen"

    @property
    def releases(self) -> str:
        """LIST: up to 1000 tokens that were released, the latest first; distinguishes a repeated release from
        a lost lease. Expires a minute after the latest release."""
        return self._base + ":releases"

    def wake(self, place: int) -> str:
        """STREAM of one entry, whose id is the server time in µs: when a client at this place of the ring was
        handed the lock. Expires after some seconds."""
        return f"{self._base}:wake:{place}"

    @functools.cached_property
    def all(self) -> list[str]:
        """The keys in the order of all scripts, see lock_at() in _locks.lua; without the ring."""
        return [self.key, self.fence, self.line, self.seen, self.releases]

    @functools.cached_property
    def with_ring(self) -> list[str]:
        """The keys in the order of the scripts that wake clients."""
        return [*self.all, *map(self.wake, range(RING))]


def lock_key(prefix: str, lock: str) -> str:
    """The default key of a lock."""
    return tag(prefix, "lock", lock)


def checked_lock_key(value: str) -> str:
    """Return `value` if it is a valid lock key, so that other keys can be put into its slot.

    >>> checked_lock_key("shop:lock")
    'shop:lock'
    """
    if "}" in _hashed_part(name(value, "key")):
        raise InvalidArgument(
            f"key {value!r} has a }} outside a hash tag: other keys could not share its slot."
        )
    return value


def _hashed_part(key: str) -> str:
    """The part of a key that determines its slot: the hash tag, or the whole key without one."""
    _, _, rest = key.partition("{")
    inside, end, _ = rest.partition("}")
    return inside if inside and end else key


def _base(prefix: str, key: str) -> str:
    """The beginning of the other keys of a lock: under the app's prefix, in the slot of its key."""
    if key.startswith(f"{prefix}:{FORMAT}:{{lock:") and key.endswith("}"):
        return key
    hashed = _hashed_part(key)
    suffix = "" if hashed == key else f":{encoded(key)}"
    return f"{prefix}:{FORMAT}:{{{hashed}}}:lock{suffix}"


def fence_pattern(prefix: str) -> str:
    """The SCAN pattern of the fences of all locks, and of few other keys."""
    return f"{prefix}:{FORMAT}:{{*:fence"


def parse_fence_key(prefix: str, fence_key: str) -> tuple[str, str] | None:
    """The name and the key of the lock to which a fence belongs; if the lock has a key of its own, both are
    that key. None for other keys.

    >>> parse_fence_key("site", "site:2:{lock:nightly%20report}:fence")
    ('nightly report', 'site:2:{lock:nightly%20report}')
    >>> parse_fence_key("site", "site:2:{shop:lock}:lock:fence")
    ('shop:lock', 'shop:lock')
    >>> parse_fence_key("site", "site:2:{7}:lock:shop%3A%7B7%7D%3Aa%20b:fence")
    ('shop:{7}:a b', 'shop:{7}:a b')
    >>> parse_fence_key("site", "site:2:{chat:7}:fence")
    """
    hashed, _, suffix = fence_key.removeprefix(f"{prefix}:{FORMAT}:{{").removesuffix(":fence").partition("}")
    if not suffix and hashed.startswith("lock:"):
        name = unquote(hashed.removeprefix("lock:"))
        return name, lock_key(prefix, name)
    if suffix == ":lock":
        return hashed, hashed
    key = unquote(suffix.removeprefix(":lock:"))
    return (key, key) if suffix.startswith(":lock:") else None


@dataclass(frozen=True, kw_only=True, slots=True)
class LockInfo:
    """The state of a lock at one moment."""

    read_at: datetime
    """The moment, by the server's clock."""
    holder: str | None
    """The token of the holder: host, process id and a random part; of another program, the token that it
    chose. None: the lock is free."""
    acquired_at: datetime | None
    """When the holder acquired it; None if the lock is free or held by another program, or was handed to a
    waiting client that has not confirmed it yet."""
    expires_at: datetime | None
    """When the lease ends; None without one."""
    fence: int
    """The fence of the latest acquire; 0 if there was none for a day."""
    waiting: int
    """The number of waiting clients."""
    waiters: tuple[str, ...]
    """The tokens of the first waiting clients, in the order in which they will acquire the lock."""


class Lock(Leasable):
    """A lock: one thread or task holds it at a time, across processes, until its release or lease ends.

    >>> with Lock("report") as lock:
    ...     "no other process runs this now"
    'no other process runs this now'

    As a decorator, it is held by each call of a function or coroutine function.

    >>> @Lock("report")
    ... def report():
    ...     return "done"
    >>> report()
    'done'

    `timeout` is the lease: the seconds after which the lock is free even without a release. With None it
    never expires: if a holder dies, the lock blocks all others until its `key` is deleted. `renew=True`
    extends the lease in the background, after each third of it, while the lock is held. If the lease is
    lost all the same, `on_lost` is called with a LeaseLost, in a thread of its own. `blocking_timeout`
    limits how long `acquire` waits.

    Waiting clients acquire the lock in the order of their arrival; one that dies while it waits delays the
    others by a second. A lock belongs to the thread, or the task of an event loop, that acquired it, unless
    `thread_local=False`: then to all of the process, but not to a forked child. It is not reentrant: a
    holder that waits for its own lock gets a LockError at once.

    A lease may end while its holder still works (a long pause of the process, a failover that loses
    writes), so mutual exclusion can't be guaranteed. `fence` grows with each acquire: the protected
    resource should reject a smaller fence than it has seen.

    With `replicas=n`, `acquire` succeeds only if n replicas have the lock within a second, or half of the
    lease: a failover to one of them keeps it. Otherwise it is released again, and Unavailable is raised. They
    confirm extensions, too: one that is not confirmed raises OutcomeUnknown, a renewal is repeated until the
    lease counts as lost. A confirmation is part of the same round trip.

    The semantics are those of redis-py's Lock. With `key` the lock uses this Redis key, and excludes
    redis-py's clients that use the same key; those don't queue, and don't increase the fence.
    """

    #: 1 if it can be acquired from a server that is out of memory, else 0
    _when_full = 0

    def __init__(
        self,
        name: str,
        *,
        timeout: Duration | None = 10,
        blocking: bool = True,
        blocking_timeout: Duration | None = None,
        renew: bool = False,
        on_lost: Callable[[LeaseLost], object] | None = None,
        key: str | None = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
        replicas: int = 0,
        using: str | None = None,
    ) -> None:
        super().__init__(using=using)
        self.name = encoding.name(name, "name")
        self._lease = 0 if timeout is None else milliseconds(timeout, "timeout", minimum=1)
        #: the lease in seconds; None without one
        self.timeout = self._lease / 1000 if self._lease else None
        self.blocking = bool(flag(blocking, "blocking"))
        #: default of the seconds that acquire waits
        self.blocking_timeout = seconds_to_wait(blocking_timeout)
        self.renew = bool(flag(renew, "renew"))
        if self.renew and timeout is None:
            raise InvalidArgument("renew=True needs a timeout: without one there is no lease to extend.")
        self._on_lost = callback(on_lost, "on_lost", renew=self.renew)
        #: the Redis key: a string with the holder's token
        self.key = lock_key(self._prefix, name) if key is None else checked_lock_key(key)
        self._keys = LockKeys(self._prefix, self.key)
        self._thread_local = flag(thread_local, "thread_local")
        self._owners = Owners(Holding) if self._thread_local else SharedOwner(Holding)
        self._raises = bool(flag(raise_on_release_error, "raise_on_release_error"))
        self.replicas = integer(replicas, "replicas", minimum=0, maximum=MAX_REPLICAS)
        self._confirmation = self._confirm() if replicas else None

    @property
    def fence(self) -> int:
        """The fence of the latest acquire of this thread or task, also after its release; 0 before the
        first. It is greater than that of every earlier acquire: the server time in µs, or more."""
        return self._holding.fence

    def acquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: Duration | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Acquire the lock; returns False if it was not free in time.

        `blocking` and `blocking_timeout` default to the constructor's. A `token` that the caller passes
        must be unique.

        >>> Lock("backup").acquire(blocking=False)
        True

        Raises LockError if it would wait although this thread or task holds the lock; LimitExceeded if
        10,000 clients are waiting; Unavailable, also if too few replicas have confirmed it; OutcomeUnknown:
        the lock may be held until the end of the lease.
        """
        attempt = self._attempt(blocking, blocking_timeout, token)
        try:
            return self._store(attempt, self._acquire(attempt))
        except BaseException as error:  # also interrupts
            if attempt.forget(error):
                with suppress(MessagingError), deadline(LEAVE_DEADLINE):
                    self._leave(attempt.token)
            raise

    async def aacquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: Duration | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """An async version of `acquire`."""
        attempt = self._attempt(blocking, blocking_timeout, token)
        try:
            return self._store(attempt, await self._aacquire(attempt))
        except GeneratorExit:
            raise  # a closed coroutine can't await: its ticket in the queue expires
        except BaseException as error:  # also cancellation
            if attempt.forget(error):
                with suppress(MessagingError), deadline(LEAVE_DEADLINE):
                    await self._aleave(attempt.token)
            raise

    @operation
    def release(self) -> Steps[None]:
        """Release the lock; the first waiting client acquires it.

        Raises LockError if this thread or task has not acquired it, LockNotOwnedError if the lease had
        expired. After Unavailable or OutcomeUnknown, release it again, or let the lease expire.
        """
        holding = self._holding
        token = self._held_token(holding, "release")
        holding.end_renewal()
        released = yield from self._release(token)
        if holding.token == token:
            holding.token = None
        if not released:
            raise self._lease_lost("release")

    arelease = asynchronous(release)

    @operation
    def extend(self, additional_time: Duration, replace_ttl: bool = False) -> Steps[Literal[True]]:
        """Add `additional_time` to the lease; with `replace_ttl`, let the lease end after that time from
        now.

        Raises LockError if this thread or task has not acquired the lock, or it has no lease;
        LockNotOwnedError if the lease has expired; OutcomeUnknown if too few replicas have confirmed it.
        """
        mode = "replace" if flag(replace_ttl, "replace_ttl") else "add"
        ms = milliseconds(additional_time, "additional_time", minimum=1)
        return (yield from self._extend("extend", ms, mode))

    aextend = asynchronous(extend)

    @operation
    def reacquire(self) -> Steps[Literal[True]]:
        """Restart the lease with its full duration. Raises the same errors as `extend`."""
        return (yield from self._extend("reacquire", self._lease, "replace"))

    areacquire = asynchronous(reacquire)

    @operation
    def locked(self) -> Steps[bool]:
        """Whether any client holds the lock.

        >>> Lock("nothing").locked()
        False
        """
        return bool((yield Command("EXISTS", self.key, reads=True)))

    alocked = asynchronous(locked)

    @operation
    def owned(self) -> Steps[bool]:
        """Whether this thread or task holds the lock."""
        token = self._holding.token
        return token is not None and (yield Command("GET", self.key, reads=True)) == token

    aowned = asynchronous(owned)

    @operation
    def info(self) -> Steps[LockInfo]:
        """The holder, its lease and fence, and the clients that wait; the first 100 of these by their
        tokens.

        >>> with Lock("report") as lock:
        ...     info = lock.info()
        >>> info.fence == lock.fence, info.waiting
        (True, 0)
        >>> lock.info().holder is None
        True
        """
        return parse_info((yield Script("locks/info", self._keys.all, [MAX_LISTED])))

    ainfo = asynchronous(info)

    @operation
    def release_holder(self, holder: str) -> Steps[bool]:
        """Release the lock for another client, for example one that hangs; `holder` is its token, as in
        `info`. Returns False if that client doesn't hold the lock any more.

        >>> lock = Lock("stuck", timeout=None)
        >>> lock.acquire()
        True
        >>> lock.release_holder(lock.info().holder)
        True
        """
        # Neither the holder nor a repeat after a lost reply can recognize this release.
        args = (checked_token(holder), 0)
        return bool((yield Script("locks/release", self._keys.with_ring, args, once=True)))

    arelease_holder = asynchronous(release_holder)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @property
    def _holding(self) -> Holding:
        return self._owners.current

    def _attempt(
        self, blocking: bool | None, blocking_timeout: Duration | None, token: str | bytes | None
    ) -> Attempt:
        waits = self.blocking if blocking is None else flag(blocking, "blocking")
        wait = self.blocking_timeout if blocking_timeout is None else seconds_to_wait(blocking_timeout)
        chosen = new_token().encode() if token is None else checked_token(token)
        seconds = wait if waits else 0
        ends = math.inf if seconds is None else monotonic() + seconds - min(FINAL_POLL_MARGIN, seconds / 10)
        holding = self._holding
        held = self._held_already(holding, seconds)
        return Attempt(chosen, holding, seconds, held, ends, self._on_lost)

    def _held_already(self, holding: Holding, seconds: float | None) -> bytes:
        """The token with which this thread or task may hold the lock, if that makes waiting for it
        pointless."""
        if not self._thread_local or seconds == 0:
            return b""
        if holding.token is None and seconds is None and _endless:  # another object for the same lock
            holding = _endless.get((current_owner(), self._using, self.key), holding)
        return holding.token or b""

    def _store(self, attempt: Attempt, fence: int) -> bool:
        """Store an acquired lock and start its renewal; returns whether it was acquired."""
        if fence:
            attempt.holding.hold(attempt, fence, self._renewal(attempt) if self.renew else None)
            if self._thread_local and (self.renew or self.timeout is None):
                _endless[current_owner(), self._using, self.key] = attempt.holding
        return fence > 0

    def _renewal(self, attempt: Attempt) -> RenewedLease:
        """The renewal must not reference the holders: they end it when they are destroyed."""
        args = (attempt.token, self._lease, "keep", "-")
        script = Script("locks/extend", self._keys.all, args, confirmation=self._confirmation)
        on_lost = attempt.on_lost and partial(_report_lost, attempt.on_lost, self.name)
        return RenewedLease(self._using, self.name, self._lease / 1000, script, on_lost)

    @operation
    def _acquire(self, attempt: Attempt) -> Steps[int]:
        """Acquire the lock; returns the fence, or 0."""
        max_waiting = 0 if attempt.wait == 0 else MAX_WAITING
        reply = yield from self._poll(attempt, max_waiting, waited=self._when_full)
        if isinstance(reply, int):
            return reply
        queue = waiters(self._using, self.key, KEEP_INTERVAL)
        try:
            return (yield from self._wait(attempt, queue, reply))
        finally:
            queue.leave(attempt.token)

    _aacquire = asynchronous(_acquire)

    def _wait(self, attempt: Attempt, queue: Waiters, reply: list[Any]) -> Steps[int]:
        """Wait in the queue until the lock is acquired; `reply`: to the first poll."""
        others: Sequence[bytes] = ()
        since, is_woken = 0, True  # server time in µs: older wake-ups are ignored
        while True:
            place, pause, now, gone = reply
            queue.polled(attempt.token, attempt.sent_at, gone, others)
            since = now if is_woken else since  # as before, so that a read that is pending can be taken over
            wake = Listen(self._keys.wake(place), since, seconds=pause / 1000, match=attempt.token)
            is_woken = yield from queue.wait(wake, attempt.token, attempt.ends)
            is_last = monotonic() >= attempt.ends
            others = () if is_last else queue.choose_others(attempt.token)
            reply = yield from self._poll(attempt, 0 if is_last else MAX_WAITING, waited=1, others=others)
            if isinstance(reply, int):
                return reply

    def _poll(
        self, attempt: Attempt, max_waiting: int, *, waited: int = 0, others: Sequence[bytes] = ()
    ) -> Steps[Any]:
        """Acquire the lock if possible; returns the fence, or 0, or how to wait."""
        args: list[Argument] = [attempt.token, self._lease, max_waiting, waited, attempt.held, *others]
        keys, began = self._keys.with_ring, monotonic()
        script = Script("locks/acquire", keys, args, confirmation=self._confirmation)
        try:
            reply = yield script
        except OutcomeUnknown as error:
            if isinstance(error.__cause__, Unconfirmed):
                yield from self._take_back(attempt.token, error)
            raise
        attempt.sent_at = script.sent_since(began)
        if reply is None:
            raise self._not_reentrant()
        if isinstance(reply, int) and reply < 0:
            raise LimitExceeded("waiting clients of a lock", limit=MAX_WAITING, actual=1 - reply)
        return reply

    def _take_back(self, token: bytes, error: OutcomeUnknown) -> Steps[None]:
        """Release a lock that too few replicas have confirmed; raises Unavailable if it is released."""
        try:
            yield from self._release(token)
        except MessagingError:
            return
        raise Unavailable(
            f"Lock {self.name!r} was released again: {error.__cause__}. Check that the server has as many "
            "replicas as replicas= requires, and that they are connected."
        ) from error

    def _confirm(self) -> Confirmation:
        lease = self.timeout or math.inf
        # is_fence also recognizes the reply to an extension that was made
        return Confirmation(self.replicas, min(CONFIRM_TIMEOUT, CONFIRM_PART * lease), is_fence)

    @operation
    def _leave(self, token: bytes) -> Steps[bool]:
        """Release the lock, or leave the queue; returns whether the token held the lock."""
        return (yield from self._release(token))

    _aleave = asynchronous(_leave)

    def _release(self, token: bytes) -> Steps[bool]:
        return bool((yield Script("locks/release", self._keys.with_ring, (token, RELEASE_TTL))))

    def _extend(self, verb: str, ms: int, mode: str) -> Steps[Literal[True]]:
        """Extend the lease. `verb` is for the message of an error."""
        holding = self._holding
        token = self._held_token(holding, verb)
        if self.timeout is None:
            raise LockError(f"Lock {self.name!r} can't {verb}: its timeout is None.", lock_name=self.name)
        args, began = (token, ms, mode, os.urandom(8).hex()), monotonic()
        script = Script("locks/extend", self._keys.all, args, confirmation=self._confirmation)
        remaining = yield script
        if not remaining:
            raise self._lease_lost(verb)
        if holding.renewal is not None:
            holding.renewal.change_end(script.sent_since(began) + remaining / 1000)
        return True

    def _held_token(self, holding: Holding, verb: str) -> bytes:
        if holding.token is None:
            raise LockError(
                f"Lock {self.name!r} can't {verb}: this thread or task hasn't acquired it, or released it.",
                lock_name=self.name,
            )
        return holding.token

    def _not_acquired(self) -> LockError:
        return LockError(f"Lock {self.name!r} could not be acquired in time.", lock_name=self.name)

    def _must_raise(self, failure: MessagingError) -> bool:
        return self._raises or not isinstance(failure, LockError)

    def _log_failed_release(self, failure: MessagingError) -> None:
        logger.warning("Lock %r was not released: %s", self.name, failure)

    def _not_reentrant(self) -> LockError:
        return LockError(
            f"Lock {self.name!r} is held by this thread or task already, and is not reentrant: waiting for "
            "it would never end. Release it first, or pass the held lock on.",
            lock_name=self.name,
        )

    def _lease_lost(self, verb: str) -> LockNotOwnedError:
        return LockNotOwnedError(
            f"Lock {self.name!r} can't {verb}: its lease had expired, so another client may have held it "
            "since. Use a longer timeout, or renew=True.",
            lock_name=self.name,
        )


@dataclass(slots=True)
class Attempt:
    """An acquire: its validated arguments, and when it succeeded."""

    token: bytes
    #: what this thread or task holds of the lock
    holding: Holding
    #: seconds to wait; None: without a limit
    wait: float | None
    #: token with which this thread or task may hold the lock already, so that waiting is pointless; or empty
    held: bytes
    #: when the last poll is due, which leaves the queue; monotonic
    ends: float = math.inf
    #: called if the renewed lease is lost
    on_lost: Callable[[LeaseLost], object] | None = None
    #: when the latest request was sent, so that the lease lasts from then on at least; monotonic
    sent_at: float = 0.0

    def forget(self, error: BaseException) -> bool:
        """Forget an acquire that failed. Returns whether its token may still be in the queue, or hold the
        lock."""
        self.holding.forget(self.token)
        if isinstance(error, Unavailable | OutcomeUnknown):
            return self.wait != 0  # without waiting, only a lost reply is possible: the lease ends
        return not isinstance(error, LockError | LimitExceeded | ConfigurationError)


class Holding(Owned):
    """What one thread or task holds of a lock."""

    __slots__ = ("fence", "renewal", "token")

    def __init__(self) -> None:
        self.token: bytes | None = None
        self.fence = 0
        self.renewal: RenewedLease | None = None

    def hold(self, attempt: Attempt, fence: int, renewal: RenewedLease | None) -> None:
        """Store what an acquire granted, and start the renewal."""
        self.end_renewal()
        self.token, self.fence, self.renewal = attempt.token, fence, renewal
        if renewal is not None:
            renewal.start(attempt.sent_at)

    def forget(self, token: bytes) -> None:
        """Hold nothing any more, if this token was stored."""
        if self.token == token:
            self.end_renewal()
            self.token = None

    def end_renewal(self) -> None:
        """Stop renewing the lease."""
        if self.renewal is not None:
            self.renewal.end()
        self.renewal = None


#: (owner, alias, key) → what a thread or task holds without an end: a lock that is renewed or has no lease
_endless: weakref.WeakValueDictionary[tuple[int, str, str], Holding] = weakref.WeakValueDictionary()
after_fork(_endless.clear)


def parse_info(reply: list[Any]) -> LockInfo:
    """The reply of locks/info.lua."""
    now, holder, remaining, fence, is_owner, waiting, *waiters = reply
    held = holder is not None
    return LockInfo(
        read_at=to_datetime(now),
        holder=_text(holder) if held else None,
        acquired_at=to_datetime(int(fence) / 1000) if held and is_owner else None,
        expires_at=to_datetime(now + remaining) if remaining >= 0 else None,
        fence=int(fence),
        waiting=waiting,
        waiters=tuple(map(_text, waiters)),
    )


def is_fence(reply: Any) -> bool:
    """Whether the reply to an acquire is a fence: the lock was granted."""
    return isinstance(reply, int) and reply > 0


def _text(token: bytes) -> str:
    """A token as text: other programs may use any bytes."""
    return token.decode(errors="backslashreplace")


def _report_lost(on_lost: Callable[[LeaseLost], object], name: str) -> None:
    on_lost(LockNotOwnedError(f"The lease of lock {name!r} was lost while it was held.", lock_name=name))


def seconds_to_wait(blocking_timeout: Duration | None) -> float | None:
    """`blocking_timeout` in seconds; None: without a limit."""
    return None if blocking_timeout is None else milliseconds(blocking_timeout, "blocking_timeout") / 1000


def checked_token(token: str | bytes) -> bytes:
    """Return a valid token as bytes."""
    token = token.encode() if isinstance(token, str) else token
    if not isinstance(token, bytes):
        raise TypeError(f"token must be a str or bytes, not {type(token).__name__}.")
    if not 1 <= len(token) <= encoding.MAX_NAME_BYTES:
        raise InvalidArgument(
            f"token must have between 1 and {encoding.MAX_NAME_BYTES} bytes, not {len(token)}."
        )
    return token
