"""Locks: mutual exclusion across processes."""

from .fencing import afenced_update, fenced_update
from .lock import Lock, LockInfo

__all__ = ["Lock", "LockInfo", "afenced_update", "fenced_update"]
