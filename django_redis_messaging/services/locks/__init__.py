"""Locks: mutual exclusion across processes."""

from .fencing import afenced_update, fenced_update
from .leader import Leader, Term
from .lock import Lock, LockInfo
from .multilock import MultiLock

__all__ = ["Leader", "Lock", "LockInfo", "MultiLock", "Term", "afenced_update", "fenced_update"]
