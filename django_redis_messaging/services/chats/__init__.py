"""Group chat by pull: every member receives every message, in one order, at least once until acked."""

from .chat import Chat
from .values import Changes, ChatEvent, ChatInfo, ChatSummary, Found, Member, Message, Names, Page, Pending

__all__ = [
    "Changes",
    "Chat",
    "ChatEvent",
    "ChatInfo",
    "ChatSummary",
    "Found",
    "Member",
    "Message",
    "Names",
    "Page",
    "Pending",
]
