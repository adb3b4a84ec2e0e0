"""The event loop of a process, on which the coroutines of its threads run."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.db import close_old_connections, connections

from ...core import clients
from ...core.failures import LoopGuard, log_exception
from ...errors import TaskTimeout
from . import databases

logger = logging.getLogger(__name__)

#: seconds that coroutines get to end when they are cancelled
CLOSING_TIMEOUT = 5.0
#: seconds that a loop that failed gets to log why
FAILURE_TIMEOUT = 1.0
#: seconds after which a call of `sync_to_async` that outlived its coroutine is no longer waited for
ABANDONED_AFTER = 0.5
#: threads of such calls that run at a time, at most; with more, the event loop fails
MAX_ABANDONED = 20

#: the result of a coroutine, or what it raised
Ended = tuple[Any, BaseException | None]


class EventLoopEnded(Exception):
    """The event loop ended by an unexpected error, before the coroutine did."""


class SyncThread(ThreadSensitiveContext):
    """Where asgiref runs the `sync_to_async` calls of coroutines: one thread, started by the first call, with
    its own database connections."""

    #: closes the connections after the last call; not done: a call still runs there, though its coroutine
    #: has ended
    closing: asyncio.Future[list[str]] | None = None
    #: whether it may have open database connections before the first call of a coroutine
    has_connections = False

    @property
    def abandoned(self) -> bool:
        """Whether a call still runs there, though its coroutine has ended."""
        return self.closing is not None and not self.closing.done()

    @property
    def has_started(self) -> bool:
        """Whether there was a call."""
        return self in SyncToAsync.context_to_thread_executor


class EventLoop:
    """One event loop, in a thread that starts with the first coroutine.

    Each thread that runs coroutines here has its own database connections for them, as a request has under
    ASGI: a coroutine can't close those of another one. Old connections are closed before and after each
    coroutine.
    """

    def __init__(self, on_failure: Callable[[], object] = lambda: None) -> None:
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._started: tuple[asyncio.AbstractEventLoop, threading.Thread] | None = None
        self._closing = False
        self._failed = False
        #: coroutines that have not ended
        self._running: set[concurrent.futures.Future[Ended]] = set()
        #: for each thread that runs coroutines: `sync_thread`
        self._local = threading.local()
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
            self._check_abandoned()
        try:
            if error is not None:
                raise error
            return value
        finally:
            del error  # its traceback refers to this frame

    def _submit(self, coroutine: Coroutine[Any, Any, Any]) -> concurrent.futures.Future[Ended]:
        loop = self._started_loop()
        outcome = _outcome(self._sync_thread(), coroutine)
        try:
            return asyncio.run_coroutine_threadsafe(outcome, loop)
        except RuntimeError:  # the loop is closed
            outcome.close()
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

    def _sync_thread(self) -> SyncThread:
        found: SyncThread | None = getattr(self._local, "sync_thread", None)
        if found is None or found.abandoned:
            found = self._local.sync_thread = SyncThread()
        return found

    def _check_abandoned(self) -> None:
        """If the coroutine of this thread has left a call behind, log that; end because of too many."""
        sync_thread: SyncThread = self._local.sync_thread
        if not sync_thread.abandoned:
            return
        with self._lock:
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
        self._on_failure()
        for running in list(self._running):
            with suppress(concurrent.futures.InvalidStateError):  # it has ended meanwhile
                running.set_exception(EventLoopEnded())


async def _outcome(sync_thread: SyncThread, coroutine: Coroutine[Any, Any, Any]) -> Ended:
    """Run a coroutine whose sync calls use this thread. Returns its result, or what it raised: as the
    exception of an asyncio task, SystemExit and KeyboardInterrupt would end the event loop."""
    SyncToAsync.thread_sensitive_context.set(sync_thread)
    if sync_thread.has_connections:
        await _close_connections(sync_thread)
    value, error = None, None
    try:
        value = await coroutine
    except asyncio.CancelledError:
        await _end_calls(sync_thread)
        raise
    except BaseException as raised:
        error = raised
    left_open = await _end_calls(sync_thread, interrupted=issubclass(type(error), TaskTimeout))
    try:
        if left_open and error is None:
            error = databases.open_transaction_error(left_open)
        return value, error
    finally:
        del error  # its traceback refers to this frame


async def _end_calls(sync_thread: SyncThread, *, interrupted: bool = False) -> list[str]:
    """Wait for the calls that a coroutine has left in its thread, for a moment, and close its connections
    there: all if it was `interrupted`. Returns the databases in which it left a transaction open."""
    if not sync_thread.has_started:
        return []
    sync_thread.closing = asyncio.ensure_future(_close_connections(sync_thread, interrupted=interrupted))
    await asyncio.wait([sync_thread.closing], timeout=ABANDONED_AFTER)
    return [] if sync_thread.abandoned else sync_thread.closing.result()


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
    left_open = databases.discard_open_transactions()
    if interrupted:
        databases.discard_all()
    close_old_connections()
    return left_open, sum(one.connection is not None for one in connections.all(initialized_only=True))


async def _end(loop: asyncio.AbstractEventLoop) -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for one in others:
        one.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await clients.aclose()
    await loop.shutdown_asyncgens()
