"""Locks: what only one may do at a time, over all processes."""

from .lock import Lock

__all__ = ["Lock"]
