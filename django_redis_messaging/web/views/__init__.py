"""The pages and their JSON, one class each; a site subclasses what it wants to be different."""

from .actions import AckView, DeleteMessageView, EditView, SendView, SessionView, TypingView
from .blocks import BlocksView, BlockView, UnblockView
from .chats import ChatsFeedView, ChatsView
from .choices import ChoicesView, UnsubscribeView
from .contacts import ContactsView, ForgetContactView, PersonView, SuggestView
from .details import (
    AddView,
    DeleteChatView,
    DetailsView,
    LeaveView,
    MemberSuggestView,
    MuteView,
    RemoveView,
    RenameView,
    RoleView,
)
from .feeds import RoomFeedView
from .messages import MessagePageView
from .new import NewChatView
from .notifications import (
    BellView,
    DiscardNotificationView,
    NotificationsFeedView,
    NotificationsView,
    ReadNotificationsView,
)
from .rooms import RoomView
from .search import SearchView

__all__ = [
    "AckView",
    "AddView",
    "BellView",
    "BlockView",
    "BlocksView",
    "ChatsFeedView",
    "ChatsView",
    "ChoicesView",
    "ContactsView",
    "DeleteChatView",
    "DeleteMessageView",
    "DetailsView",
    "DiscardNotificationView",
    "EditView",
    "ForgetContactView",
    "LeaveView",
    "MemberSuggestView",
    "MessagePageView",
    "MuteView",
    "NewChatView",
    "NotificationsFeedView",
    "NotificationsView",
    "PersonView",
    "ReadNotificationsView",
    "RemoveView",
    "RenameView",
    "RoleView",
    "RoomFeedView",
    "RoomView",
    "SearchView",
    "SendView",
    "SessionView",
    "SuggestView",
    "TypingView",
    "UnblockView",
    "UnsubscribeView",
]
