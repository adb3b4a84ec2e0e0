"""The list of chats, and new ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.translation import gettext_lazy as _

from ...errors import ChatExists, ChatNotFound, InvalidArgument, NotAMember, NotPermitted
from ...services.chats import Chat, ChatSummary
from ...services.chats.direct import direct_id
from ...services.directories.recent import RecentContacts
from ...services.users.privacy import Blocks
from ...signals import message_sent
from .. import problems
from ..base import MessagingPage, MessagingView, conditional_json
from ..fields import NewChatForm, clean
from ..people import reachable_labels
from ..problems import Problem
from ..rendering import ChatRow, chat_rows, row_json
from .people import MAX_NEW_CONTACTS, PickerPage

#: chats on a page of the list
CHATS_PER_PAGE = 50


class ChatListMixin(MessagingView):
    """Reads the list of chats for the list itself and for the sidebar of a room."""

    def rows(self, *, after: str | None = None) -> list[ChatRow]:
        """A page of the chats, newest activity first."""
        return chat_rows(self.summaries(after=after), people=self.people, me=self.me)

    def summaries(self, *, after: str | None = None) -> list[ChatSummary]:
        """The chats of the page; none for a script that has the list already."""
        if self.request.headers.get("Messaging-Without") == "list":
            return []
        return self.inbox(self.me).chats(limit=CHATS_PER_PAGE, after=after)


class ChatsView(ChatListMixin, MessagingPage):
    """The list of chats, with unread counts and newest messages."""

    template_name = "django_redis_messaging/chats.html"

    def get(self, request: HttpRequest) -> HttpResponse:
        after = request.GET.get("after") or None
        try:
            rows = self.rows(after=after)
        except InvalidArgument:
            # Not a cursor: show the first page.
            after, rows = None, self.rows()
        more = rows[-1].summary.cursor if len(rows) == CHATS_PER_PAGE else None
        return self.page({"rows": rows, "more": more, "further": after is not None})


class ChatsFeedView(ChatListMixin):
    """The first page of the list as JSON; with `html`, the HTML of each row instead of its texts."""

    json_only = True

    def get(self, request: HttpRequest) -> HttpResponse:
        rows = self.rows()
        data = {
            "chats": [row_json(row, self.reader) for row in rows],
            "unread": sum(row.summary.unread for row in rows),
            "has_more": len(rows) == CHATS_PER_PAGE,
        }
        return conditional_json(request, data)


class NewChatView(PickerPage):
    """Opens a chat with the people chosen; title and first message are optional.

    With one person and without a title, it is the one direct chat with that person, which may exist already.
    """

    template_name = "django_redis_messaging/new.html"
    tab = "new"
    invalid_message = _("This chat can't be created.")

    def get(self, request: HttpRequest) -> HttpResponse:
        return self.show_form()

    def post(self, request: HttpRequest) -> HttpResponse:
        if "search" in request.POST:
            return self.show_form()
        data = clean(NewChatForm(request.POST))
        chosen = self.recipients()
        self.check_recipients(chosen)
        try:
            chat = self.open_chat(chosen, data)
        except ChatExists as error:
            return self.existing(error)
        for member in reversed(chosen[:MAX_NEW_CONTACTS]):
            RecentContacts(self.me).touch(member)
        return self.done({"id": chat.id, "url": self.url("room", chat.id)}, "room", chat.id)

    def check_recipients(self, chosen: Sequence[str]) -> None:
        """Raise the Problem unless the guild rule and the site's own rules allow this chat."""
        if not chosen:
            raise problems.invalid(_("Choose at least one person."), field="to")
        if len(reachable_labels(self.active_identity, self.request.user, chosen)) < len(chosen):
            raise Problem(problems.NOT_IN_DIRECTORY)
        if not self.active_identity.may_create(self.request.user, chosen):
            raise Problem(problems.NOT_PERMITTED)

    def existing(self, error: ChatExists) -> HttpResponse:
        """The answer to a repeat whose request id is no longer remembered: the chat of the first one."""
        try:
            self.service(error.chat_id).role(self.me)
        except (ChatNotFound, NotAMember):
            raise error from None
        if not self.wants_json:
            return self.done({}, "room", error.chat_id)
        exists = {"code": problems.EXISTS.code, "message": str(problems.EXISTS.message)}
        data = {"error": exists, "id": error.chat_id, "url": self.url("room", error.chat_id)}
        return JsonResponse(data, status=problems.EXISTS.status)

    def open_chat(self, chosen: Sequence[str], data: dict[str, Any]) -> Chat:
        """The chat with these people, with the first message."""
        if len(chosen) == 1 and not data["title"]:
            return self.open_direct_chat(chosen[0], data)
        return self.create_chat(chosen, data)

    def open_direct_chat(self, other: str, data: dict[str, Any]) -> Chat:
        """The one chat with another person, which may exist already."""
        try:
            self.service(direct_id(self.me, other)).role(self.me)
        except (ChatNotFound, NotAMember):
            self.count_use("create")
            self.count_use("invite")
        try:
            chat = self.service.direct(self.me, other)
        except NotPermitted:
            if other in Blocks(self.me).list():
                raise Problem(problems.BLOCKED) from None
            raise
        if data["body"].strip():
            self.count_use("send")
            message = chat.send(self.me, data["body"], request_id=data["request_id"] or None)
            message_sent.send_robust(type(self), request=self.request, message=message)
        return chat

    def create_chat(self, chosen: Sequence[str], data: dict[str, Any]) -> Chat:
        """A new chat. Repeating a request with the same `request_id` returns the chat of the first one."""
        self.count_use("create")
        self.count_use("invite", len(chosen))
        request_id = data["request_id"] or None
        chat = self.service.create(self.me, chosen, data["body"], title=data["title"], request_id=request_id)
        if message_sent.has_listeners(type(self)):
            for message in chat.history(self.me, limit=1).messages:
                message_sent.send_robust(type(self), request=self.request, message=message)
        return chat
