"""Calls that wait for transactions, and are sent when these are committed."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from time import monotonic
from typing import NamedTuple, Protocol

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from ..core.operations import describe, log_exception
from ..core.outcome import deadline
from ..errors import LimitExceeded, MessagingError, OutcomeUnknown, Unavailable
from ..services.jobs.engine import Push
from .compat import TaskResult

logger = logging.getLogger(__name__)

#: seconds for which a commit waits for Redis, in all its round trips together; in each of them, the first
#: REPEATED_DEADLINE doesn't count
COMMIT_DEADLINE = 2.0
#: the same for further commits, for COMMIT_DEADLINE after a failure, and for another CACHES alias after that
REPEATED_DEADLINE = 0.1
#: ids that a log line lists at most
MAX_LOGGED_IDS = 100


#: a call that is not enqueued yet: its result, and its job
Prepared = tuple[TaskResult, Push]


class Sender(Protocol):
    """RedisBackend, as a commit sees it."""

    #: alias in TASKS
    alias: str
    #: moment of the last failure to send after a commit: monotonic
    failed_at: float

    @property
    def using(self) -> str: ...

    def send_committed(
        self, prepared: Sequence[Prepared], limited: Callable[[Sender], AbstractContextManager[None]]
    ) -> None: ...


class Calls(NamedTuple):
    """The calls of one enqueue(), of one enqueue_many(), or of a batch."""

    backend: Sender
    prepared: Sequence[Prepared]

    @property
    def queue(self) -> str:
        """The queue of the first one; empty if there is none, as in a batch without calls."""
        queue: str = self.prepared[0][0].task.queue_name if self.prepared else ""
        return queue

    @property
    def not_enqueued(self) -> list[Prepared]:
        """Those that are not enqueued yet."""
        return [one for one in self.prepared if one[0].enqueued_at is None]


def send_on_commit(when: bool | str, calls: Calls) -> bool:
    """Send calls when the open transactions they have to wait for are committed: those of all databases
    (True), or of one (its alias). False, with nothing done, if there are none.

    Raises TransactionManagementError for a database without autocommit: Django runs no function after its
    commits.
    """
    if when is False:
        return False
    aliases = list(connections) if when is True else [when]
    awaited = sorted(alias for alias in aliases if _is_open(connections[alias]))
    if awaited:
        _commit.start()
        _WaitingCalls(calls, awaited)
    return bool(awaited)


class _WaitingCalls:
    """Calls that wait for the commits of one or several databases.

    Each has a function of its own that Django calls after the commit, and drops after a rollback. The first
    one that is called also sends the calls of those that follow it without another function in between, in
    the same savepoints or outer ones: if it was not rolled back, they were not either.
    """

    def __init__(self, calls: Calls, aliases: Sequence[str]) -> None:
        self.calls = calls
        self.aliases = list(aliases)
        self.is_sent = False
        self._open = set(aliases)
        before = self._before()
        #: the ones whose calls can be sent together, in their order
        self._batch: list[_WaitingCalls] = before._batch if before is not None else []
        self._at = len(self._batch)
        self._batch.append(self)
        # one hook for each transaction: after a rollback, its hook is never called, and nothing is sent
        for alias in aliases:
            transaction.on_commit(_Hook(self, alias).run, using=alias, robust=True)

    def _before(self) -> _WaitingCalls | None:
        """The one that is registered directly before, with all its savepoints around these calls, too."""
        found: _WaitingCalls | None = None
        for alias in self.aliases:
            connection = connections[alias]
            if not connection.run_on_commit:
                return None
            savepoints, function, *_ = connection.run_on_commit[-1]
            hook = getattr(function, "__self__", None)
            if not isinstance(hook, _Hook) or not savepoints.issuperset(connection.savepoint_ids):
                return None
            if hook.waiting.aliases != self.aliases or found not in (None, hook.waiting):
                return None
            found = hook.waiting
        return found

    def committed(self, alias: str) -> None:
        """Send the calls if this was the last commit they waited for."""
        self._open.discard(alias)
        if self._open or self.is_sent:
            return
        together = [one for one in self._batch[self._at :] if not one.is_sent]
        for one in together:
            one.is_sent = True
        _send([one.calls for one in together])


class _Hook:
    """The function that is called after the commit of one database."""

    def __init__(self, waiting: _WaitingCalls, alias: str) -> None:
        self.waiting = waiting
        self._alias = alias

    def run(self) -> None:
        self.waiting.committed(self._alias)


class _Commit(threading.local):
    """The commit in progress in this thread: its calls share one deadline."""

    def __init__(self) -> None:
        #: seconds of slow round trips for which it has waited, by CACHES alias; inf after a failure
        self._spent: dict[str, float] = {}

    def start(self) -> None:
        """Begin a new one."""
        self._spent.clear()

    @contextmanager
    def limited(self, backend: Sender) -> Iterator[None]:
        """A block that sends to the Redis of a backend; raises Unavailable if the time is over."""
        using, began = backend.using, monotonic()
        whole = REPEATED_DEADLINE if began - backend.failed_at < COMMIT_DEADLINE else COMMIT_DEADLINE
        spent = self._spent.setdefault(using, 0.0)
        total = sum(min(one, COMMIT_DEADLINE) for one in self._spent.values())
        left = min(whole - spent, max(whole - total, REPEATED_DEADLINE))
        if left <= 0:
            raise Unavailable("The commit has used up its time to wait for Redis.")
        try:
            with deadline(left):
                yield
        except (Unavailable, OutcomeUnknown):
            self._spent[using], backend.failed_at = math.inf, monotonic()
            raise
        finally:
            # not what a healthy server needs: the calls of a large transaction need many round trips; not +=:
            # a transaction that began meanwhile has cleared it
            waited = max(monotonic() - began - REPEATED_DEADLINE, 0)
            self._spent[using] = self._spent.get(using, 0.0) + waited


_commit = _Commit()


def _send(waiting: Sequence[Calls]) -> None:
    """Send calls after a commit, those of each queue together. An error is logged, not raised: the
    transaction is committed, and other functions that wait for the commit must run."""
    by_queue: dict[tuple[str, str], list[Calls]] = {}
    for calls in waiting:
        by_queue.setdefault((calls.backend.alias, calls.queue), []).append(calls)
    for together in by_queue.values():
        _send_together(together)


def _send_together(together: Sequence[Calls]) -> None:
    backend = together[0].backend
    prepared = [one for calls in together for one in calls.not_enqueued]
    try:
        backend.send_committed(prepared, _commit.limited)
    except LimitExceeded as error:
        if len(together) == 1:
            log_unsent([result for result, _ in prepared], error)
            return
        for calls in together:  # there may be room for some of them
            _send_together([calls])
    except Exception as error:
        log_unsent([result for result, _ in prepared], error)


def log_unsent(results: Sequence[TaskResult], error: Exception) -> None:
    """Log the calls that an error kept from being sent after their commit, with their ids."""
    outcome = "may not have been" if isinstance(error, OutcomeUnknown) else "were not"
    by_task: dict[str, list[str]] = {}
    for result in results:
        if result.enqueued_at is None:
            by_task.setdefault(result.task.module_path, []).append(result.id)
    for path, ids in by_task.items():
        more = f" and {len(ids) - MAX_LOGGED_IDS} more" if len(ids) > MAX_LOGGED_IDS else ""
        log_exception(
            logger,
            error,
            "%d calls of %s %s enqueued after the commit, and are not retried: %s (ids: %s%s)",
            len(ids),
            path,
            outcome,
            error if isinstance(error, MessagingError) else describe(error),
            ", ".join(ids[:MAX_LOGGED_IDS]),
            more,
        )


def _is_open(connection: BaseDatabaseWrapper) -> bool:
    """Whether a transaction is open that runs functions after its commit."""
    if connection.in_atomic_block:
        return True
    # the connection's own value is False until it is opened, and get_autocommit() would open it
    is_unopened = connection.connection is None
    if not (connection.settings_dict["AUTOCOMMIT"] if is_unopened else connection.autocommit):
        raise transaction.TransactionManagementError(
            f"Tasks can't be enqueued on commit of the database {connection.alias!r}: its autocommit is off, "
            "so Django runs no function after its commits. Use transaction.atomic(), name another database "
            "in ENQUEUE_ON_COMMIT, or enqueue after the commit with .using(on_commit=False)."
        )
    return False
