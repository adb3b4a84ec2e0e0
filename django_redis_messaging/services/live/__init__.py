"""Live updates: what changes for a user is pushed to an async iterator, for web pages and the site's code."""

from .events import events
from .values import ChatsChanged, Known, LiveEvent, MailChanged, RoomChanged, RoomClosed

__all__ = ["ChatsChanged", "Known", "LiveEvent", "MailChanged", "RoomChanged", "RoomClosed", "events"]
