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
from .blocks import BlocksView, BlockView, UnblockView
from .chats import ChatsFeedView, ChatsView
from .contacts import ContactsView, ForgetContactView, SuggestView
from .messages import MessagePageView
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
    "BlockView",
    "BlocksView",
    "ChatsFeedView",
    "ChatsView",
    "ContactsView",
    "DeleteChatView",
    "DeleteMessageView",
    "DiscardNotificationView",
    "EditView",
    "ForgetContactView",
    "LeaveView",
    "MessagePageView",
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
    "UnblockView",
]
