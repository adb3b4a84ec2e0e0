"""Read-write locks: many readers or one writer at a time, across processes."""

from .rwlock import (
    ReadLock,
    ReadWriteLock,
    ReadWriteLockHolder,
    ReadWriteLockInfo,
    ReadWriteLockWaiter,
    WriteLock,
)

__all__ = [
    "ReadLock",
    "ReadWriteLock",
    "ReadWriteLockHolder",
    "ReadWriteLockInfo",
    "ReadWriteLockWaiter",
    "WriteLock",
]
