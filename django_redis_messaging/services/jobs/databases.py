"""The database connections of a thread that makes attempts.

An attempt can leave a connection in a transaction that nobody ends: it turned autocommit off, or was
interrupted between BEGIN and Django's own note of it. What the next attempts write there is lost. Django's
flags don't show it, so the drivers are asked.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

from django.conf import settings
from django.db import connections, reset_queries
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import TransactionManagementError

logger = logging.getLogger(__name__)

#: states of a connection without a transaction, by libpq: idle, and unknown (closed)
_PSYCOPG_IDLE = (0, 4)


def prepare() -> None:
    """Before an attempt: close the connections of this thread that are too old or broken, and those in a
    transaction; forget the queries that DEBUG has recorded, as before a request."""
    if settings.DEBUG:
        reset_queries()
    for connection in connections.all(initialized_only=True):
        if is_in_transaction(connection):
            logger.warning(
                "Database %r was left in a transaction; its connection is closed.", connection.alias
            )
            discard(connection)
        else:
            connection.close_if_unusable_or_obsolete()


def discard_open_transactions() -> list[str]:
    """After an attempt: throw away the connections of this thread that it left in a transaction; returns the
    aliases of their databases."""
    left = [one for one in connections.all(initialized_only=True) if is_in_transaction(one)]
    for connection in left:
        discard(connection)
    return [one.alias for one in left]


def open_transaction_error(aliases: list[str]) -> TransactionManagementError:
    """The error of an attempt that ended, but left transactions open in these databases."""
    return TransactionManagementError(
        f"The call returned, but left a transaction open in database {', '.join(map(repr, aliases))}; it was "
        "rolled back. End transactions in the call, for example with transaction.atomic()."
    )


def discard_all() -> None:
    """Throw away all connections of this thread, whatever their state."""
    for connection in connections.all(initialized_only=True):
        discard(connection)


def discard(connection: BaseDatabaseWrapper) -> None:
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
