"""`manage.py messaging_locks`: lists locks with their holders, semaphores, read-write locks and latches;
releases a lock."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ... import Lock, MessagingError, conf
from ...core.encoding import current_prefix
from ...services.common.operators import (
    ListedLatch,
    ListedLock,
    ListedReadWriteLock,
    ListedSemaphore,
    list_latches,
    list_locks,
    list_rwlocks,
    list_semaphores,
)
from ..output import printable, table

Row = dict[str, Any]
#: columns of the tables
LOCK_COLUMNS = ("lock", "holder", "next", "held_for", "lease_left", "fence", "waiting")
SEMAPHORE_COLUMNS = ("semaphore", "limit", "held", "waiting")
RWLOCK_COLUMNS = ("read_write_lock", "writer", "readers", "lease_left", "fence", "waiting")
LATCH_COLUMNS = ("latch", "count", "remaining")


class Command(BaseCommand):
    """Prints tables, or JSON; or releases a lock."""

    help = (
        "List the locks that are held or waited for, with holders, ages, fences and waiting clients, the "
        "semaphores in use, the read-write locks, and the latches. With --release, release a lock that "
        "another process holds."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("names", nargs="*", help="names of locks (default: all, and the other tables)")
        parser.add_argument("--release", metavar="NAME", help="release this lock, whoever holds it")
        parser.add_argument(
            "--key", action="store_true", help="the names are Redis keys, as in Lock(key=...)"
        )
        parser.add_argument("--using", metavar="ALIAS", help="alias in CACHES (default: that of the app)")
        parser.add_argument("--json", action="store_true", help="as JSON, for programs")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print them, or release one."""
        using, release = options["using"] or conf.alias(), options["release"]
        try:
            locks = [_lock(name, using, options) for name in options["names"]]
            if release is not None:
                text = _release(_lock(release, using, options))
            else:
                rows = _rows_of(locks) if locks else _all_rows(using)
                text = json.dumps(rows, indent=2) if options["json"] else _text(**rows)
        except MessagingError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(text)


def _lock(name: str, using: str, options: dict[str, Any]) -> Lock:
    return Lock(name, key=name if options["key"] else None, using=using)


def _release(lock: Lock) -> str:
    """Release the lock for its holder."""
    info, name = lock.info(), printable(lock.name)
    if info.holder is None:
        raise CommandError(f"The lock {name} is not held.")
    if not lock.release_holder(info.holder):
        raise CommandError(f"The lock {name} has another holder by now; nothing was released.")
    return f"Released the lock {name}, which {printable(info.holder)} held."


def _rows_of(locks: Sequence[Lock]) -> dict[str, list[Row]]:
    """These locks, even if they are free."""
    rows = [_lock_row(ListedLock(lock.name, lock.info())) for lock in locks]
    return {"locks": rows, "semaphores": [], "read_write_locks": [], "latches": []}


def _all_rows(using: str) -> dict[str, list[Row]]:
    """All locks, semaphores and read-write locks in use, and all latches."""
    prefix = current_prefix()
    locks = sorted(list_locks(using, prefix), key=lambda one: one.name)
    semaphores = sorted(list_semaphores(using, prefix), key=lambda one: one.name)
    rwlocks = sorted(list_rwlocks(using, prefix), key=lambda one: one.name)
    latches = sorted(list_latches(using, prefix), key=lambda one: one.name)
    return {
        "locks": [_lock_row(one) for one in locks],
        "semaphores": [_semaphore_row(one) for one in semaphores],
        "read_write_locks": [_rwlock_row(one) for one in rwlocks],
        "latches": [_latch_row(one) for one in latches],
    }


def _lock_row(lock: ListedLock) -> Row:
    info = lock.info
    return {
        "lock": lock.name,
        "holder": info.holder,
        "next": info.waiters[0] if info.waiters else None,
        "held_for": _seconds(info.acquired_at, info.read_at),
        "lease_left": _seconds(info.read_at, info.expires_at),
        "fence": info.fence,
        "waiting": info.waiting,
        "waiters": info.waiters,
    }


def _semaphore_row(semaphore: ListedSemaphore) -> Row:
    info = semaphore.info
    return {"semaphore": semaphore.name, "limit": info.limit, "held": info.held, "waiting": info.waiting}


def _rwlock_row(lock: ListedReadWriteLock) -> Row:
    info = lock.info
    return {
        "read_write_lock": lock.name,
        "writer": info.writer,
        "readers": info.readers,
        "lease_left": _seconds(info.read_at, info.holders[0].expires_at if info.holders else None),
        "fence": info.fence,
        "waiting": info.waiting,
        "holders": [one.token for one in info.holders],
    }


def _latch_row(latch: ListedLatch) -> Row:
    return {"latch": latch.name, "count": latch.info.count, "remaining": latch.info.remaining}


def _seconds(begin: datetime | None, end: datetime | None) -> float | None:
    return None if begin is None or end is None else (end - begin).total_seconds()


def _text(locks: list[Row], semaphores: list[Row], read_write_locks: list[Row], latches: list[Row]) -> str:
    tables = [
        _table(LOCK_COLUMNS, locks, left=3),
        _table(SEMAPHORE_COLUMNS, semaphores, left=1),
        _table(RWLOCK_COLUMNS, read_write_locks, left=2),
        _table(LATCH_COLUMNS, latches, left=1),
    ]
    return "\n\n".join(filter(None, tables)) or "No locks are held, and no semaphores are in use."


def _table(columns: Sequence[str], rows: list[Row], *, left: int) -> str:
    lines = [[_cell(row[column]) for column in columns] for row in rows]
    return table([columns, *lines], left=left) if rows else ""


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.1f} s" if isinstance(value, float) else printable(str(value))
