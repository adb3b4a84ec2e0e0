"""The listener: runs the handlers of timers and of keyspace events."""

from .listener import Listener

__all__ = ["Listener"]
