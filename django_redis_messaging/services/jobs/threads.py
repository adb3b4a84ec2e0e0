"""The threads that run jobs: their database connections, their event loop, and calls that are interrupted.

An attempt can leave a connection in a transaction that nobody ends: it turned autocommit off, or was
interrupted between BEGIN and Django's own note of it. What the next attempts write there is lost. Django's
flags don't show it, so the drivers are asked.

Coroutines of all threads run on one event loop, in a thread of its own.

CPython raises an interrupt between two instructions of the thread, wherever that is: even after a lock was
acquired and before the block that releases it. Python 3.11 to 3.13 raise none between `with lock:` and its
block, later versions do (CPython issue 148874). So the thread of an interrupted call is not used again, and
before it ends it looks for locks that it still holds: other threads would wait for them forever.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import concurrent.futures.thread
import ctypes
import faulthandler
import gc
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from contextvars import Context
from time import monotonic
from typing import Any, cast

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.conf import settings
from django.core.cache import caches
from django.core.cache.backends import locmem
from django.db import close_old_connections, connections, reset_queries
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import TransactionManagementError
from django.dispatch import Signal

from ...core import clients
from ...core.operations import LoopGuard, log_exception
from ...core.outcome import deadline

logger = logging.getLogger(__name__)

#: seconds that coroutines get to end when they are cancelled
CLOSING_TIMEOUT = 5.0
#: seconds that a loop that failed gets to log why
FAILURE_TIMEOUT = 1.0
#: seconds after which a call of `sync_to_async` that outlived its coroutine is no longer waited for
ABANDONED_AFTER = 0.5
#: threads of such calls that run at a time, at most; with more, the event loop fails
MAX_ABANDONED = 20
#: seconds between two interrupts of a call that goes on
INTERRUPT_INTERVAL = 1.0
#: seconds for which a lock of a kind that is never held for long may be held by another thread
LOCK_TIMEOUT = 2.0
#: tries in that time: one alone could end while C code keeps all other threads from running
LOCK_TRIES = 20
#: seconds for the last calls and log lines; then the process ends in any case
END_TIMEOUT = 2.0
#: the file descriptor of the standard error stream
STDERR = 2

#: states of a connection without a transaction, by libpq: idle, and unknown (closed)
_PSYCOPG_IDLE = (0, 4)
#: modules that may have a handler of task backends: Django's own, and its backport
_TASK_MODULES = ("django.tasks", "django_tasks")

_RLock: Any = type(threading.RLock())
_Lock: Any = type(threading.Lock())

#: a coroutine, what it awaits, and its context
_Unstarted = tuple[Coroutine[Any, Any, None], Coroutine[Any, Any, Any], Context]
#: the result of a coroutine, or what it raised
Ended = tuple[Any, BaseException | None]


def prepare_connections() -> None:
    """Before an attempt: close the connections of this thread that are too old or broken, and those in a
    transaction; forget the queries that DEBUG has recorded, as before a request."""
    if settings.DEBUG:
        reset_queries()
    for connection in connections.all(initialized_only=True):
        if is_in_transaction(connection):
            logger.warning(
                "Database %r was left in a transaction; its connection is closed.", connection.alias
            )
            discard_connection(connection)
        else:
            connection.close_if_unusable_or_obsolete()


def create_backends() -> None:
    """Create the cache and task backends of this thread. They are stored in the context, so each attempt, in
    a copy of it, would create its own ones otherwise."""
    handlers: list[Any] = [caches]
    handlers += [vars(sys.modules[name])["task_backends"] for name in _TASK_MODULES if name in sys.modules]
    for handler in handlers:
        for alias in handler:
            with suppress(Exception):  # an invalid entry of the settings: raised where it is used
                handler[alias]


def discard_open_transactions() -> list[str]:
    """After an attempt: throw away the connections of this thread that it left in a transaction; returns the
    aliases of their databases."""
    left = [one for one in connections.all(initialized_only=True) if is_in_transaction(one)]
    for connection in left:
        discard_connection(connection)
    return [one.alias for one in left]


def open_transaction_error(aliases: list[str]) -> TransactionManagementError:
    """The error of an attempt that ended, but left transactions open in these databases."""
    return TransactionManagementError(
        f"The call returned, but left a transaction open in database {', '.join(map(repr, aliases))}; it was "
        "rolled back. End transactions in the call, for example with transaction.atomic()."
    )


def discard_connections() -> None:
    """Throw away all connections of this thread, whatever their state."""
    for connection in connections.all(initialized_only=True):
        discard_connection(connection)


def discard_connection(connection: BaseDatabaseWrapper) -> None:
    """Throw away a connection of this thread: close it at the driver, whatever Django knows of its state; the
    next use opens another one."""
    driver: Any = connection.connection
    with suppress(Exception):  # it may be broken
        if driver is not None:
            driver.close()
    with suppress(Exception):
        connection.close()  # gives it back to its pool, if it has one
    with suppress(AttributeError):  # discarded already
        del connections[connection.alias]


def is_in_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Whether a connection is in a transaction, as far as that can be found out without a query."""
    if connection.in_atomic_block:
        blocks: list[Any] = connection.atomic_blocks
        # that of a TestCase, which calls a task or a handler in its own thread, is not left by an attempt
        return not (blocks and blocks[0]._from_testcase)
    if connection.connection is None:
        return False
    try:
        return _is_driver_in_transaction(connection)
    except Exception:
        return False  # it is closed or broken, which Django notices


def _is_driver_in_transaction(connection: BaseDatabaseWrapper) -> bool:
    driver: Any = connection.connection
    vendor = connection.vendor
    if vendor == "sqlite":
        return bool(driver.in_transaction)
    if vendor == "postgresql":
        return driver.info.transaction_status not in _PSYCOPG_IDLE
    if vendor == "oracle" and hasattr(driver, "transaction_in_progress"):
        return bool(driver.transaction_in_progress)
    if not connection.settings_dict["AUTOCOMMIT"]:
        return False  # the other drivers only know whether autocommit is off, which it always is there
    if vendor == "mysql":
        return not driver.get_autocommit()
    return not connection.get_autocommit()


class AttemptInterrupted(BaseException):
    """Raised in a call whose time is up. Not an Exception, so that `except Exception` doesn't catch it."""


class InterruptibleCall:
    """A call in this thread. No interrupt is raised in this thread outside of `run`."""

    __slots__ = ("_is_interrupting", "_is_running", "_next_interrupt", "_thread", "interrupts")

    def __init__(self) -> None:
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
        """Seconds until it may be interrupted, or interrupted again; None if it does not run."""
        return self._next_interrupt - monotonic() if self._is_running else None


def _set_pending(thread: int, kind: type[BaseException] | None) -> None:
    raised = None if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)


class EventLoop:
    """One event loop, in a thread that starts with the first coroutine.

    Each coroutine has its own database connections meanwhile, as a request has under ASGI: a coroutine can't
    close those of another one. They are kept for the next coroutines. Old connections are closed before and
    after each.

    After an unexpected error it ends, and calls `on_failure`, then `on_end`.
    """

    def __init__(
        self, on_failure: Callable[[], object] = lambda: None, on_end: Callable[[], object] = lambda: None
    ) -> None:
        self._on_failure = on_failure
        self._on_end = on_end
        self._lock = threading.Lock()
        self._started: tuple[asyncio.AbstractEventLoop, threading.Thread] | None = None
        self._closing = False
        self._failed = False
        #: coroutines of `run` that have not ended
        self._running: set[concurrent.futures.Future[Ended]] = set()
        #: coroutines of `start` that have not been started there
        self._unstarted: deque[_Unstarted] = deque()
        #: those that have not ended
        self._tasks: set[asyncio.Task[None]] = set()
        #: threads that no coroutine uses
        self._free: list[SyncThread] = []
        #: threads whose calls outlived their coroutines, until these calls end
        self._abandoned: set[SyncThread] = set()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine there, and return its result; raises what it raises, or EventLoopEnded."""
        if self._failed:
            coroutine.close()
            raise EventLoopEnded
        running = self._submit(coroutine)
        self._running.add(running)
        try:
            if self._failed:
                raise EventLoopEnded
            value, error = running.result()
        finally:
            self._running.discard(running)
        try:
            if error is not None:
                raise error
            return value
        finally:
            del error  # its traceback refers to this frame

    def start(self, coroutines: Sequence[_Unstarted]) -> None:
        """Start coroutines there, each with another one that it awaits and its context; they must raise
        nothing. Raises EventLoopEnded, and has closed them then."""
        self._unstarted.extend(coroutines)
        try:
            loop = self._started_loop()
            loop.call_soon_threadsafe(self._create_tasks, loop)
            if self._failed:
                raise EventLoopEnded
        except (EventLoopEnded, RuntimeError):  # the loop is closed
            self._close_unstarted()
            raise EventLoopEnded from None

    async def attend(self, coroutine: Coroutine[Any, Any, Any]) -> Ended:
        """Run a coroutine here, with database connections of its own. Returns its result, and what it raised:
        as the exception of an asyncio task, SystemExit and KeyboardInterrupt would end the event loop."""
        sync_thread = self._free.pop() if self._free else SyncThread()
        try:
            return await _outcome(sync_thread, coroutine)
        finally:
            if sync_thread.abandoned:
                self._note_abandoned(sync_thread)
            else:
                self._free.append(sync_thread)

    def _create_tasks(self, loop: asyncio.AbstractEventLoop) -> None:
        with suppress(IndexError):  # none is left
            while True:
                coroutine, _, context = self._unstarted.popleft()
                task = loop.create_task(coroutine, context=context)
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def _close_unstarted(self) -> None:
        with suppress(IndexError):  # none is left
            while True:
                coroutine, rest, _ = self._unstarted.popleft()
                coroutine.close()
                rest.close()

    def _submit(self, coroutine: Coroutine[Any, Any, Any]) -> concurrent.futures.Future[Ended]:
        loop = self._started_loop()
        attending = self.attend(coroutine)
        try:
            return asyncio.run_coroutine_threadsafe(attending, loop)
        except RuntimeError:  # the loop is closed
            attending.close()
            coroutine.close()
            if self._failed:  # meanwhile
                raise EventLoopEnded from None
            raise

    def close(self) -> None:
        """Stop the loop, after cancelling what still runs there."""
        if self._started is None:
            return
        loop, thread = self._started
        if self._failed:
            thread.join(FAILURE_TIMEOUT)
            return
        try:
            asyncio.run_coroutine_threadsafe(_end(loop), loop).result(CLOSING_TIMEOUT)
        except TimeoutError:
            logger.warning(
                "A coroutine did not end within %g s after it was cancelled; its thread keeps running.",
                CLOSING_TIMEOUT,
            )
            return
        self._closing = True
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def _started_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._started is None:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(target=self._run_loop, args=(loop,), name="event loop", daemon=True)
                thread.start()
                self._started = loop, thread
            return self._started[0]

    def _note_abandoned(self, sync_thread: SyncThread) -> None:
        """Log that a coroutine has left a call behind in this thread; end because of too many."""
        self._abandoned = {one for one in (*self._abandoned, sync_thread) if one.abandoned}
        count = len(self._abandoned)
        logger.warning(
            "A call of sync_to_async still runs though its coroutine has ended; it keeps its thread and its "
            "database connections. %d such threads now.",
            count,
        )
        if count > MAX_ABANDONED:
            logger.error("More than %d such threads; stopping.", MAX_ABANDONED)
            self._on_failure()

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        message = "The event loop ended by an unexpected error; its coroutines are abandoned."
        with LoopGuard(logger, message, on_failure=self._fail):
            while not self._closing:
                self._run_until_stopped(loop)
        if self._failed:
            loop.close()

    def _run_until_stopped(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.run_forever()
            if not self._closing:
                logger.warning("A coroutine stopped the event loop; it continues.")
        except (SystemExit, KeyboardInterrupt) as error:
            # raised by an asyncio task that a coroutine created, or by a callback
            logger.warning("%s was raised in the event loop; it continues.", type(error).__name__)

    def _fail(self) -> None:
        self._failed = True
        self._close_unstarted()
        self._on_failure()
        for running in list(self._running):
            with suppress(concurrent.futures.InvalidStateError):  # it has ended meanwhile
                running.set_exception(EventLoopEnded())
        self._on_end()


class EventLoopEnded(Exception):
    """The event loop ended by an unexpected error, before the coroutine did."""


class SyncThread(ThreadSensitiveContext):
    """Where asgiref runs the `sync_to_async` calls of a coroutine: one thread, started by the first call,
    with its own database connections."""

    #: closes the connections after the last call; not done: a call still runs there, though its coroutine
    #: has ended
    closing: asyncio.Future[list[str]] | None = None
    #: whether it may have open database connections before the first call of a coroutine
    has_connections = False
    #: whether `end_calls` was called for the coroutine that uses it
    has_ended_calls = False

    @property
    def abandoned(self) -> bool:
        """Whether a call still runs there, though its coroutine has ended."""
        return self.closing is not None and not self.closing.done()

    @property
    def has_started(self) -> bool:
        """Whether there was a call."""
        return self in SyncToAsync.context_to_thread_executor


def _current_sync_thread() -> SyncThread:
    """That of the coroutine that runs."""
    return cast(SyncThread, SyncToAsync.thread_sensitive_context.get())


async def _outcome(sync_thread: SyncThread, coroutine: Coroutine[Any, Any, Any]) -> Ended:
    """Run a coroutine whose sync calls use this thread. Returns its result, or what it raised."""
    SyncToAsync.thread_sensitive_context.set(sync_thread)
    if sync_thread.has_connections:
        await _close_connections(sync_thread)
    sync_thread.has_ended_calls = False
    value, error = await run_to_end(coroutine)
    left_open = [] if sync_thread.has_ended_calls else await _end_calls(sync_thread)
    try:
        if left_open and error is None:
            error = open_transaction_error(left_open)
        return value, error
    finally:
        del error  # its traceback refers to this frame


async def run_to_end(coroutine: Coroutine[Any, Any, Any]) -> Ended:
    """Await a coroutine; returns its result, or what it raised."""
    value, error = None, None
    try:
        value = await coroutine
    except GeneratorExit:  # its event loop has ended before it
        raise
    except BaseException as raised:
        error = raised
    try:
        return value, error
    finally:
        del error  # its traceback refers to this frame


async def end_calls(*, interrupted: bool = False) -> list[str]:
    """Wait for the calls that this coroutine has left in its thread, for a moment, and close its connections
    there: all if it was `interrupted`. Returns the databases in which it left a transaction open."""
    return await _end_calls(_current_sync_thread(), interrupted=interrupted)


async def _end_calls(sync_thread: SyncThread, *, interrupted: bool = False) -> list[str]:
    sync_thread.has_ended_calls = True
    if not sync_thread.has_started:
        return []
    sync_thread.closing = asyncio.ensure_future(_close_connections(sync_thread, interrupted=interrupted))
    await asyncio.wait([sync_thread.closing], timeout=ABANDONED_AFTER)
    return [] if sync_thread.abandoned else sync_thread.closing.result()


async def call_in_thread(function: Callable[[], object]) -> None:
    """Call a function in the thread of this coroutine, after its last call there; it must raise nothing."""
    sync_thread = _current_sync_thread()
    if not sync_thread.abandoned:
        await sync_to_async(function)()
        await _close_connections(sync_thread)


async def _close_connections(sync_thread: SyncThread, *, interrupted: bool = False) -> list[str]:
    try:
        left_open, count = await sync_to_async(_close_and_count)(interrupted)
    except Exception as error:
        log_exception(logger, error, "Closing database connections failed.")
        return []
    sync_thread.has_connections = count > 0
    return left_open


def _close_and_count(interrupted: bool) -> tuple[list[str], int]:
    """Close the connections of this thread that are too old, broken or in a transaction, or all; returns the
    databases of those in a transaction, and how many connections are left."""
    left_open = discard_open_transactions()
    if interrupted:
        discard_connections()
    close_old_connections()
    return left_open, sum(one.connection is not None for one in connections.all(initialized_only=True))


async def _end(loop: asyncio.AbstractEventLoop) -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for one in others:
        one.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await clients.aclose()
    await loop.shutdown_asyncgens()


def end_process(name: str, locks: Sequence[Any], release: Callable[[], object]) -> None:
    """End this process with an error, since an interrupted thread, the current one, holds these locks. It
    calls `release` before, and logs why: this thread can acquire its own locks, but others could be held."""
    faulthandler.dump_traceback_later(END_TIMEOUT, exit=True, file=STDERR)  # needs no lock and no Python code
    why = f"{name}: an interrupted call left locks held, which other threads would wait for: {locks[:3]}"
    with suppress(OSError):  # it may be closed
        os.write(STDERR, f"{why}; exiting.\n".encode(errors="backslashreplace"))
    with LoopGuard(logger, "Releasing the jobs of %s failed.", name), deadline(END_TIMEOUT / 2):
        release()
    with LoopGuard(logger, "Logging failed."):
        logger.critical("%s; exiting.", why)
        logging.shutdown()
    os._exit(1)


_is_frozen = False


def freeze() -> None:
    """Let no garbage collection touch the objects of this process, before others are forked from it: it would
    copy the memory that they share. The search for locks ends that: it would not find those objects."""
    global _is_frozen
    gc.collect()
    gc.freeze()
    _is_frozen = True


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
    if _is_frozen:
        gc.unfreeze()
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
