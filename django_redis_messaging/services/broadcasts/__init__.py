"""Broadcast: everybody pulls, nobody is registered."""

from .broadcast import Broadcast
from .values import Batch, Event

__all__ = ["Batch", "Broadcast", "Event"]
