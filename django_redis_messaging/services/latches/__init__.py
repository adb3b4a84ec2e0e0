"""Latches: clients wait until a number of events have been counted."""

from .latch import Latch, LatchInfo

__all__ = ["Latch", "LatchInfo"]
