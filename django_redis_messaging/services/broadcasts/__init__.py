"""Broadcasts: every reader of a channel gets every event; readers are not registered."""

from .broadcast import Broadcast
from .values import Batch, Event

__all__ = ["Batch", "Broadcast", "Event"]
