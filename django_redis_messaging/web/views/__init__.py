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
from .notifications import (
    BellView,
    DiscardNotificationView,
    NotificationsFeedView,
    NotificationsView,
    ReadNotificationsView,
)
from .rooms import RoomFeedView, RoomView

__all__ = [
    "AckView",
    "AddView",
    "BellView",
    "ChatsFeedView",
    "ChatsView",
    "ContactsView",
    "DeleteChatView",
    "DeleteMessageView",
    "DiscardNotificationView",
    "EditView",
    "ForgetContactView",
    "LeaveView",
    "MuteView",
    "NewChatView",
    "NotificationsFeedView",
    "NotificationsView",
    "ReadNotificationsView",
    "RemoveView",
    "RenameView",
    "RoomFeedView",
    "RoomView",
    "SendView",
    "SuggestView",
]
