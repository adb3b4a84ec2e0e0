"""Locks: mutual exclusion across processes."""

from .lock import Lock

__all__ = ["Lock"]
