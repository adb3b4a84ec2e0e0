"""The pages and their JSON, one class each; a site subclasses what it wants to be different."""

from .actions import (
    AckView,
    AddView,
    DeleteChatView,
    DeleteMessageView,
    EditView,
    LeaveView,
    MuteView,
    RemoveView,
    RenameView,
    SendView,
)
from .chats import ChatsFeedView, ChatsView
from .contacts import ContactsView, ForgetContactView, SuggestView
from .new import NewChatView
from .rooms import RoomFeedView, RoomView

__all__ = [
    "AckView",
    "AddView",
    "ChatsFeedView",
    "ChatsView",
    "ContactsView",
    "DeleteChatView",
    "DeleteMessageView",
    "EditView",
    "ForgetContactView",
    "LeaveView",
    "MuteView",
    "NewChatView",
    "RemoveView",
    "RenameView",
    "RoomFeedView",
    "RoomView",
    "SendView",
    "SuggestView",
]
