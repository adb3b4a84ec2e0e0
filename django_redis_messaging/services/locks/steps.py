"""What a lock sends to Redis."""

from __future__ import annotations

import copy
import os
from time import monotonic
from typing import NamedTuple, Self

from ...core import keys
from ...core.operations import Listen, Script, Service, Steps, asynchronous, operation
from ...errors import LimitExceeded, LockError, LockNotOwnedError
from ..arguments import Duration, flag, milliseconds
from ..owners import Owned, Owners
from ..renewing import AwaitingRenewal, Renewal

#: how many may wait for one lock
MOST_WAITING = 10_000
#: ms for which a release is remembered, for its repeat
REMEMBERED = 60_000
#: seconds before the end of blocking_timeout at which is looked for the last time, so that it is answered
#: by then; a tenth of it, if that is less
SPARE = 0.01


class Attempt(NamedTuple):
    """An acquire, checked."""

    token: bytes
    #: seconds to wait: None without limit
    patience: float | None


class Own(Owned):
    """What one thread, or task, has of a lock."""

    __slots__ = ("fence", "renewal", "token")

    def __init__(self) -> None:
        self.token: bytes | None = None
        self.fence = 0
        self.renewal: Renewal | AwaitingRenewal | None = None

    def hold(self, token: bytes, fence: int) -> None:
        """It was acquired."""
        self.end_renewal()
        self.token, self.fence = token, fence

    def end_renewal(self) -> None:
        """Renew it no more."""
        if self.renewal is not None:
            self.renewal.abandon()
        self.renewal = None


class LockSteps(Service):
    """The steps of a lock, and whose it is."""

    def __init__(
        self,
        name: str,
        *,
        timeout: Duration | None = 10,
        blocking: bool = True,
        blocking_timeout: Duration | None = None,
        renew: bool = False,
        key: str | None = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
        using: str | None = None,
    ) -> None:
        super().__init__(using=using)
        self.name = keys.name(name, "name")
        self._lease = 0 if timeout is None else milliseconds(timeout, "timeout", least=1)
        #: the lease, in seconds
        self.timeout = self._lease / 1000 if self._lease else None
        self.blocking = bool(flag(blocking, "blocking"))
        #: seconds that acquire waits, if it is not told otherwise
        self.blocking_timeout = _seconds(blocking_timeout)
        self.renew = bool(flag(renew, "renew"))
        if self.renew and timeout is None:
            raise ValueError("renew=True needs a timeout: without one there is no lease to extend.")
        #: the key in Redis: a string that is the holder's token
        self.key = keys.lock_key(self._prefix, name) if key is None else keys.checked_lock_key(key)
        self._keys = keys.LockKeys(self._prefix, self.key)
        self._owners = Owners(Own) if flag(thread_local, "thread_local") else None
        self._shared = Own()
        self._raises = flag(raise_on_release_error, "raise_on_release_error")

    @property
    def _own(self) -> Own:
        return self._shared if self._owners is None else self._owners.now

    def _attempt(
        self, blocking: bool | None, blocking_timeout: Duration | None, token: str | bytes | None
    ) -> Attempt:
        waits = self.blocking if blocking is None else flag(blocking, "blocking")
        patience = self.blocking_timeout if blocking_timeout is None else _seconds(blocking_timeout)
        chosen = os.urandom(16).hex().encode() if token is None else _token(token)
        return Attempt(chosen, patience if waits else 0)

    @operation
    def _take(self, attempt: Attempt) -> Steps[int]:
        """The fence, or 0."""
        token, patience = attempt
        ends = None if patience is None else monotonic() + patience - min(SPARE, patience / 10)
        since = 0  # µs of the server: what is in the stream by then is of no interest
        waited = woken = False
        while True:
            left = None if ends is None else ends - monotonic()
            waits = left is None or left > 0
            words = (token, self._lease, MOST_WAITING if waits else 0, int(waited))
            reply = yield Script("lock_acquire", self._keys.acquiring, words)
            if isinstance(reply, int):
                if reply < 0:
                    raise LimitExceeded("those who wait for a lock", limit=MOST_WAITING, actual=1 - reply)
                return reply
            place, pause, now = reply
            since = since if waited and not woken else now
            waited = True
            seconds = pause / 1000 if left is None else min(pause / 1000, left)
            woken = (yield Listen(self._keys.wake(place), since, seconds=seconds)) is not None

    _atake = asynchronous(_take)

    @operation
    def _give_back(self, token: bytes) -> Steps[bool]:
        """Release, or leave the line."""
        return (yield from self._returned(token))

    _agive_back = asynchronous(_give_back)

    @operation
    def _keep(self, token: bytes) -> Steps[bool]:
        """Renew the lease; False where it is lost."""
        return (yield from self._extended(token, self._lease, "keep"))

    _akeep = asynchronous(_keep)

    def _returned(self, token: bytes) -> Steps[bool]:
        return bool((yield Script("lock_release", self._keys.releasing, (token, REMEMBERED))))

    def _extended(self, token: bytes, ms: int, how: str) -> Steps[bool]:
        words = (token, ms, how, os.urandom(8).hex())
        return bool((yield Script("lock_extend", (self._keys.lock, self._keys.fence), words)))

    def _keeper(self) -> Self:
        """What a renewal holds on to: not to the lock itself, or nobody's lock would be renewed for ever."""
        keeper = copy.copy(self)
        keeper._owners, keeper._shared = None, Own()
        return keeper

    def _token(self, own: Own, what: str) -> bytes:
        if own.token is None:
            raise LockError(
                f"Lock {self.name!r} can't {what}: this thread or task hasn't acquired it, or not any more.",
                lock_name=self.name,
            )
        return own.token

    def _leased_token(self, what: str) -> bytes:
        token = self._token(self._own, what)
        if self.timeout is None:
            raise LockError(f"Lock {self.name!r} can't {what}: its timeout is None.", lock_name=self.name)
        return token

    def _not_acquired(self) -> LockError:
        return LockError(f"Lock {self.name!r} was not to be had in time.", lock_name=self.name)

    def _lost(self, what: str) -> LockNotOwnedError:
        return LockNotOwnedError(
            f"Lock {self.name!r} can't {what}: its lease had ended, and others may have had it since. "
            "Let it have a longer timeout, or renew=True.",
            lock_name=self.name,
        )


def _seconds(blocking_timeout: Duration | None) -> float | None:
    return None if blocking_timeout is None else milliseconds(blocking_timeout, "blocking_timeout") / 1000


def _token(token: str | bytes) -> bytes:
    token = token.encode() if isinstance(token, str) else token
    if not isinstance(token, bytes):
        raise TypeError(f"token must be a str or bytes, not {type(token).__name__}.")
    if not 1 <= len(token) <= keys.MAX_NAME_BYTES:
        raise ValueError(f"token has {len(token)} bytes: it can have 1 to {keys.MAX_NAME_BYTES}.")
    return token
