"""Calls that wait for transactions, and are sent when these are committed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from ..errors import OutcomeUnknown
from .compat import TaskResult

logger = logging.getLogger(__name__)

#: seconds after a commit in which its calls must reach Redis: whoever committed waits for that
COMMIT_DEADLINE = 2.0
#: the same for further calls, for COMMIT_DEADLINE after a failure: a commit that sends many calls waits once
REPEATED_DEADLINE = 0.1
#: ids that a log line lists at most
MAX_LOGGED_IDS = 100


def send_on_commit(when: bool | str, send: Callable[[], None]) -> bool:
    """Have `send` called when the open transactions it has to wait for are committed: those of all databases
    (True), or of one (its alias). False, with nothing done, if there are none.

    `send` must not raise. Raises TransactionManagementError for a database without autocommit: Django runs no
    function after its commits.
    """
    if when is False:
        return False
    aliases = list(connections) if when is True else [when]
    awaited = {alias for alias in aliases if _is_open(connections[alias])}

    def committed(alias: str) -> None:
        awaited.discard(alias)
        if not awaited:
            send()

    # one hook for each transaction: after a rollback, its hook is never called, and nothing is sent
    for alias in sorted(awaited):
        transaction.on_commit(partial(committed, alias), using=alias, robust=True)
    return bool(awaited)


def log_unsent(results: Sequence[TaskResult], error: Exception) -> None:
    """Log the calls that an error kept from being sent after their commit, with their ids."""
    ids = [result.id for result in results if result.enqueued_at is None]
    more = f" and {len(ids) - MAX_LOGGED_IDS} more" if len(ids) > MAX_LOGGED_IDS else ""
    outcome = "may not have been" if isinstance(error, OutcomeUnknown) else "were not"
    logger.error(
        "%d calls of %s %s enqueued after the commit, and are not retried: %s (ids: %s%s)",
        len(ids),
        results[0].task.module_path,
        outcome,
        error,
        ", ".join(ids[:MAX_LOGGED_IDS]),
        more,
        exc_info=error,
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
