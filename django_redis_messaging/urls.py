"""The URLconf to include: `path("messages/", include("django_redis_messaging.urls"))`."""

from django.urls import path, register_converter

from .web import views
from .web.base import ChatIdConverter
from .web.live import LiveView

app_name = "messaging"

register_converter(ChatIdConverter, "messaging_chat")

_CHAT = "chats/<messaging_chat:chat_id>/"
_MESSAGE = _CHAT + "messages/<str:message_id>/"

urlpatterns = [
    path("", views.ChatsView.as_view(), name="chats"),
    path("feed/", views.ChatsFeedView.as_view(), name="chats_feed"),
    path("live/", LiveView.as_view(), name="live"),
    path("session/", views.SessionView.as_view(), name="session"),
    path("new/", views.NewChatView.as_view(), name="new"),
    path("contacts/", views.ContactsView.as_view(), name="contacts"),
    path("contacts/suggest/", views.SuggestView.as_view(), name="suggest"),
    path("contacts/person/", views.PersonView.as_view(), name="person"),
    path("contacts/forget/", views.ForgetContactView.as_view(), name="forget_contact"),
    path("blocks/", views.BlocksView.as_view(), name="blocks"),
    path("blocks/block/", views.BlockView.as_view(), name="block"),
    path("blocks/unblock/", views.UnblockView.as_view(), name="unblock"),
    path("choices/", views.ChoicesView.as_view(), name="choices"),
    path("digests/<str:token>/", views.UnsubscribeView.as_view(), name="unsubscribe"),
    path("notifications/", views.NotificationsView.as_view(), name="notifications"),
    path("notifications/feed/", views.NotificationsFeedView.as_view(), name="notifications_feed"),
    path("notifications/bell/", views.BellView.as_view(), name="bell"),
    path("notifications/read/", views.ReadNotificationsView.as_view(), name="read_notifications"),
    path("notifications/discard/", views.DiscardNotificationView.as_view(), name="discard_notification"),
    path(_CHAT, views.RoomView.as_view(), name="room"),
    path(_CHAT + "feed/", views.RoomFeedView.as_view(), name="room_feed"),
    path(_CHAT + "send/", views.SendView.as_view(), name="send"),
    path(_CHAT + "ack/", views.AckView.as_view(), name="ack"),
    path(_CHAT + "typing/", views.TypingView.as_view(), name="typing"),
    path(_CHAT + "search/", views.SearchView.as_view(), name="search"),
    path(_CHAT + "details/", views.DetailsView.as_view(), name="details"),
    path(_CHAT + "members/", views.MemberSuggestView.as_view(), name="member_suggest"),
    path(_CHAT + "role/", views.RoleView.as_view(), name="role"),
    path(_CHAT + "rename/", views.RenameView.as_view(), name="rename"),
    path(_CHAT + "mute/", views.MuteView.as_view(), name="mute"),
    path(_CHAT + "add/", views.AddView.as_view(), name="add"),
    path(_CHAT + "remove/", views.RemoveView.as_view(), name="remove"),
    path(_CHAT + "leave/", views.LeaveView.as_view(), name="leave"),
    path(_CHAT + "delete/", views.DeleteChatView.as_view(), name="delete"),
    path(_MESSAGE, views.MessagePageView.as_view(), name="message"),
    path(_MESSAGE + "edit/", views.EditView.as_view(), name="edit"),
    path(_MESSAGE + "delete/", views.DeleteMessageView.as_view(), name="delete_message"),
]
