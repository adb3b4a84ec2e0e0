"""Live updates: what changes for a user is pushed to an async iterator, for web pages and the site's code."""

from .hub import events
from .presence import Presence
from .stream import ChatsChanged, Known, LiveEvent, MailChanged, PresenceChanged, RoomChanged, RoomClosed

__all__ = [
    "ChatsChanged",
    "Known",
    "LiveEvent",
    "MailChanged",
    "Presence",
    "PresenceChanged",
    "RoomChanged",
    "RoomClosed",
    "events",
]
