"""A chat: its page, and the JSON that keeps it up to date."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.loader import render_to_string
from django.utils.functional import cached_property
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...services.chats import Member, Message, Page
from ..base import ChatMixin, MessagingPage, MessagingView
from ..params import INVALID_POSITION, get_position, parse_id
from ..people import Person, people
from ..presentation import NAMES_IN_TITLE, ChatRow, MessageView, join_names, message_views
from .chats import ChatListMixin

#: messages on a page of a room
MESSAGES_PER_PAGE = 50
#: a poll reports edits and deletions among so many of the newest messages
CHANGES_WINDOW = 100
#: members that a room lists
LISTED_MEMBERS = 200


class RoomMixin(ChatMixin, MessagingView):
    """Reads a chat as one of its members sees it."""

    def read(self, **position: Any) -> Page:
        """A page of the chat."""
        return self.chat.history(self.me, limit=MESSAGES_PER_PAGE, **position)

    @cached_property
    def members(self) -> list[Member]:
        """The members who joined first, up to LISTED_MEMBERS."""
        return self.chat.members(limit=LISTED_MEMBERS)

    def message_views(
        self, messages: Sequence[Message], *, owner: bool, unread: int = 0
    ) -> list[MessageView]:
        """The messages as the user sees them; `owner`: whether the user is an owner of the chat."""
        identity = self.active_identity
        return list(message_views(messages, identity=identity, me=self.me, owner=owner, unread=unread))

    def title(self, title: str, member_count: int) -> str:
        """The chat's title, or the names of the other members."""
        if title:
            return title
        others = [member.user for member in self.members if member.user != self.me][:NAMES_IN_TITLE]
        return join_names(self.labels(others), member_count - 1)

    def seen_text(self, messages: Sequence[Message]) -> str:
        """The members who have read the last of the messages, if it is the user's own."""
        if not messages or messages[-1].sender != self.me:
            return ""
        last = messages[-1].id
        readers = [
            member.user for member in self.members if member.user != self.me and member.read_id >= last
        ]
        if not readers:
            return ""
        names = join_names(self.labels(readers[:NAMES_IN_TITLE]), len(readers))
        return _("Seen by %(names)s") % {"names": names}

    def labels(self, ids: Sequence[str]) -> list[str]:
        return [person.label for person in people(self.active_identity, ids)]


class RoomView(ChatListMixin, RoomMixin, MessagingPage):
    """A page of a chat's history, with the form to write and the members. Showing it acks nothing."""

    template_name = "django_redis_messaging/room.html"
    invalid_message = INVALID_POSITION

    def get(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        before = get_position(request.GET, "before")
        # Read before the messages: after an edit in between, the count is too low, and the next poll
        # fetches the change. The other way round it would be lost.
        info = self.chat.info()
        page = self.read(before=before) if before is not None else self.read()
        rows = self.rows()
        unread = 0 if before is not None else self.unread_count(rows)
        owner = page.role == "owner"
        context = {
            "chat": info,
            "page": page,
            "newest": before is None,
            "gap": gap_text(page.gap),
            "rows": rows,
            "room_title": self.title(info.title, info.member_count),
            "message_views": self.message_views(page.messages, owner=owner, unread=unread),
            "unread": unread,
            "seen": self.seen_text(page.messages) if before is None else "",
            "older": page.messages[0].id if page.messages and page.has_more else None,
            "cursor": page.cursor,
            "request_id": uuid.uuid4().hex,
            "editing": self.message_to_edit(page.messages),
            "owner": owner,
            "me": self.me,
            **self.roster(info.member_count),
        }
        return self.page(context)

    def unread_count(self, rows: Sequence[ChatRow]) -> int:
        return next((row.summary.unread for row in rows if row.id == self.chat.id), 0)

    def message_to_edit(self, messages: Sequence[Message]) -> Message | None:
        """The message that `?edit=` selects, if it is the user's own."""
        if not self.request.GET.get("edit"):
            return None
        wanted = parse_id(self.request.GET["edit"])
        own = (message for message in messages if message.sender == self.me and not message.deleted)
        return next((message for message in own if message.id == wanted), None)

    def roster(self, member_count: int) -> dict[str, Any]:
        """The listed members, and the number of members that are not listed."""
        persons = people(self.active_identity, [member.user for member in self.members])
        listed: list[tuple[Person, Member]] = list(zip(persons, self.members, strict=True))
        return {"roster": listed, "roster_rest": max(member_count - len(listed), 0)}


class RoomFeedView(RoomMixin):
    """The messages of a chat as JSON: those `after` a cursor, or the page `before` one."""

    json_only = True
    invalid_message = INVALID_POSITION

    def get(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        before, after = get_position(request.GET, "before"), get_position(request.GET, "after")
        info = self.chat.info()
        if before is not None:
            page = self.read(before=before)
        else:
            page = self.read(after=after if after is not None else 0)
        data: dict[str, Any] = {
            "messages": self.as_json(page.messages, page),
            "gap": page.gap,
            "gap_text": gap_text(page.gap),
            "has_more": page.has_more,
            "reset": page.reset,
            "title": self.title(info.title, info.member_count),
            "edits": info.edits,
            "read": {member.user: member.read_id for member in self.members},
        }
        if before is None:
            newest = self.chat.history(self.me, limit=CHANGES_WINDOW).messages
            data["seen"] = self.seen_text(newest)
            if request.GET.get("edits", "") != str(info.edits):
                changed = [message for message in newest if message.edited_at]
                data["changed"] = self.as_json(changed, page)
        return JsonResponse(data)

    def as_json(self, messages: Sequence[Message], page: Page) -> list[dict[str, Any]]:
        """The messages with their labels, and with their HTML if requested."""
        views = self.message_views(messages, owner=page.role == "owner")
        return [message_json(self, view) for view in views]


def gap_text(gap: int) -> str:
    """The text that is shown where `gap` messages are missing."""
    if not gap:
        return ""
    text = ngettext("%(count)s older message was removed.", "%(count)s older messages were removed.", gap)
    return text % {"count": gap}


def message_json(view: MessagingView, shown: MessageView) -> dict[str, Any]:
    """A message in the format of all JSON answers."""
    message = shown.message
    data = {
        "id": message.id,
        "cursor": message.cursor,
        "sender": message.sender,
        "label": shown.author.label,
        "mine": shown.mine,
        "body": message.body,
        "data": message.data,
        "reply_to": message.reply_to,
        "sent_at": message.sent_at.isoformat(),
        "edited_at": message.edited_at.isoformat() if message.edited_at else None,
        "deleted": message.deleted,
    }
    if view.request.GET.get("html"):
        context = {"item": shown, "chat": {"chat_id": message.chat_id}}
        name = "django_redis_messaging/_message.html"
        data["html"] = render_to_string(name, context, request=view.request)
    return data
