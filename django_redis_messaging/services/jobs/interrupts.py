"""Calls that another thread can interrupt, and what an interrupt leaves behind.

CPython raises an interrupt between two instructions of the thread, wherever that is: also after a lock was
acquired and before the block that releases it. Python 3.11 to 3.13 raise none between `with lock:` and its
block, later versions do (CPython issue 148874). So the thread of an interrupted call is not used again, and
before it ends it looks for locks that it still holds: other threads would wait for them forever.
"""

from __future__ import annotations

import concurrent.futures.thread
import ctypes
import gc
import logging
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

from django.core.cache.backends import locmem
from django.dispatch import Signal

from ...core.failures import LoopGuard

#: seconds between two interrupts of a call that goes on
INTERRUPT_INTERVAL = 1.0
#: seconds for which a lock of a kind that is never held for long may be held by another thread
LOCK_TIMEOUT = 2.0
#: tries in that time: one alone could end while C code keeps all other threads from running
LOCK_TRIES = 20

logger = logging.getLogger(__name__)

_RLock: Any = type(threading.RLock())
_Lock: Any = type(threading.Lock())


class AttemptInterrupted(BaseException):
    """Raised in a call whose time is up. Not an Exception, so that `except Exception` doesn't catch it."""


class InterruptibleCall:
    """A call in this thread. No interrupt is raised in this thread outside of `run`."""

    def __init__(self, seconds: float) -> None:
        #: its timeout
        self.seconds = seconds
        #: how often it was interrupted
        self.interrupts = 0
        self._thread = threading.get_ident()
        self._is_running = False
        #: whether the other thread is about to interrupt
        self._is_interrupting = False
        self._next_interrupt = 0.0

    def run(self, function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        """Call the function; returns its result, and what it raised.

        The order of the statements matters. CPython raises an interrupt only where a function begins, after
        a call, or where a loop jumps back; none of these is between the end of `function` and the statement
        that forbids further interrupts. Then at most two can still arrive: one that was pending, and one of
        a thread that had not seen the end.
        """
        value, error = None, None
        self._is_running = True
        try:
            value = function()
        except BaseException as raised:
            error = raised
        self._is_running = False
        # the flag is read first: a thread that has reset it has counted its interrupt
        if self._is_interrupting or self.interrupts:
            try:
                try:
                    self._discard_pending()
                except AttemptInterrupted:
                    self._discard_pending()
            except AttemptInterrupted:
                pass
        try:
            return value, error
        finally:
            del error  # its traceback refers to this frame, and to all that the call has used

    def _discard_pending(self) -> None:
        """Wait for a thread that is about to interrupt, and discard an interrupt that was not raised yet. No
        lock is used: it could be left held."""
        while self._is_interrupting:
            pass  # for some instructions of that thread
        _set_pending(self._thread, None)

    def interrupt(self) -> bool:
        """Raise AttemptInterrupted in the call; returns False if it has ended, or was interrupted just now.
        Only one thread may use this. A call that waits inside the system notices when it returns from
        there."""
        now = monotonic()
        if now < self._next_interrupt:
            return False
        self._is_interrupting = True
        try:
            if not self._is_running:
                return False
            self.interrupts += 1
            self._next_interrupt = now + INTERRUPT_INTERVAL
            _set_pending(self._thread, AttemptInterrupted)
        finally:
            self._is_interrupting = False
        return True

    @property
    def seconds_to_interrupt(self) -> float | None:
        """Seconds until it may be interrupted again; None if it does not run."""
        return self._next_interrupt - monotonic() if self._is_running else None


def _set_pending(thread: int, kind: type[BaseException] | None) -> None:
    raised = None if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)


def find_held_locks() -> list[Any]:
    """The locks that this thread, which is about to end, still holds; and locks without an owner that stay
    held for LOCK_TIMEOUT, if they are of kinds that are held for some instructions only: of signals,
    conditions and queues, of local-memory caches and of thread pools. Others without an owner are not
    found."""
    # objects of all kinds are looked at, also half built ones
    with LoopGuard(logger, "Searching for locks that an interrupted call has left held failed."):
        return _find_held_locks()
    return []


def _find_held_locks() -> list[Any]:
    locks = list(_locks())
    if any(map(_is_own, locks)):
        del locks
        gc.collect()  # nobody waits for a lock that is garbage
        locks = list(_locks())
    own = {id(lock): lock for lock in locks if _is_own(lock)}
    others = {id(lock): lock for lock in locks if type(lock) is _Lock and lock.locked()}
    return [*own.values(), *_that_stay_held(list(others.values()))]


def _locks() -> Iterator[Any]:
    """The locks of this process: all that have an owner, and those that are held for some instructions."""
    yield logging._lock  # type: ignore[attr-defined]  # gc.freeze() may have hidden it and the next ones
    for handler in logging._handlerList:  # type: ignore[attr-defined]
        yield getattr(handler(), "lock", None)
    yield getattr(concurrent.futures.thread, "_global_shutdown_lock", None)
    yield from list(getattr(locmem, "_locks", {}).values())
    for one in gc.get_objects():
        kind = type(one)
        if kind is _RLock:
            yield one
        elif kind is threading.Condition:  # a queue.Queue has some, with its own lock
            yield getattr(one, "_lock", None)  # None: another thread is just making it
        elif issubclass(kind, Signal):
            yield getattr(one, "lock", None)


def _is_own(lock: Any) -> bool:
    return type(lock) is _RLock and lock._is_owned()


def _that_stay_held(locks: list[Any]) -> list[Any]:
    """Those of these locks that stay held for LOCK_TIMEOUT. Each try lets other threads run: if C code keeps
    Python's global lock for longer than that, their holders can release them afterwards."""
    for _ in range(LOCK_TRIES):
        ends = monotonic() + LOCK_TIMEOUT / LOCK_TRIES
        locks = [lock for lock in locks if not _becomes_free(lock, ends)]
    return locks


def _becomes_free(lock: Any, ends: float) -> bool:
    acquired: bool = lock.acquire(timeout=max(ends - monotonic(), 0))
    if acquired:
        lock.release()
    return acquired
