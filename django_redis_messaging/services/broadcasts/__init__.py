"""Broadcasts: every reader of a channel gets every event; readers are not registered."""

from .broadcast import Batch, Broadcast, Event

__all__ = ["Batch", "Broadcast", "Event"]
