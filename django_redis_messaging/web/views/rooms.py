"""One chat: its page, and what is new in it as JSON."""

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
from .. import problems
from ..base import ChatMixin, MessagingPage, MessagingView
from ..bubbles import NAMED, Bubble, Row, bubbles, named
from ..people import Person, people
from ..places import number, place
from .chats import ListMixin

#: messages on a page of a room
SHOWN = 50
#: the newest messages, of which a poll tells what was edited or deleted
WATCHED = 100
#: members a room lists
LISTED_MEMBERS = 200


class RoomMixin(ChatMixin, MessagingView):
    """Reads a chat as one of its members sees it."""

    def read(self, **where: Any) -> Page:
        """A page of the chat. Raises the Problem for a place that can't be one."""
        try:
            return self.chat.history(self.me, limit=SHOWN, **where)
        except ValueError:
            raise problems.invalid(_("This is no place in a chat.")) from None

    @cached_property
    def members(self) -> list[Member]:
        return self.chat.members(limit=LISTED_MEMBERS)

    @property
    def owner(self) -> bool:
        """Whether the one who asks owns the chat. Owners stand long, so the first members will do."""
        return any(member.user == self.me and member.role == "owner" for member in self.members)

    def bubbles(self, messages: Sequence[Message], *, unread: int = 0) -> list[Bubble]:
        found = bubbles(messages, identity=self.who, me=self.me, owner=self.owner, unread=unread)
        return list(found)

    def title(self, given: str, members: int) -> str:
        """The chat's title, or the names of the others."""
        if given:
            return given
        others = [member.user for member in self.members if member.user != self.me][:NAMED]
        return named([person.label for person in people(self.who, others)], members - 1)

    def seen(self, messages: Sequence[Message]) -> str:
        """Who has seen the newest message of these, if it is one's own."""
        if not messages or messages[-1].sender != self.me:
            return ""
        last = messages[-1].id
        readers = [one.user for one in self.members if one.user != self.me and one.read_id >= last]
        if not readers:
            return ""
        names = [person.label for person in people(self.who, readers[:NAMED])]
        return _("Seen by %(names)s") % {"names": named(names, len(readers))}


class RoomView(ListMixin, RoomMixin, MessagingPage):
    """A page of a chat's history, what to write with, and who is in it. Shows; moves no position."""

    template_name = "django_redis_messaging/room.html"

    def get(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        before = place(request.GET, "before")
        # First: if somebody edits in between, the count shown is too low, and the next poll asks again.
        info = self.chat.info()
        page = self.read(before=before) if before is not None else self.read()
        listed = self.rows()
        unread = 0 if before is not None else self.unread(listed)
        context = {
            "chat": info,
            "page": page,
            "newest": before is None,
            "gap": removed(page.gap),
            "rows": listed,
            "room_title": self.title(info.title, info.member_count),
            "bubbles": self.bubbles(page.messages, unread=unread),
            "unread": unread,
            "seen": self.seen(page.messages) if before is None else "",
            "older": page.messages[0].id if page.messages and page.has_more else None,
            "cursor": page.cursor,
            "request_id": uuid.uuid4().hex,
            "editing": self.editing(page.messages),
            **self.roster(info.member_count),
        }
        return self.page(context)

    def unread(self, listed: Sequence[Row]) -> int:
        return next((row.summary.unread for row in listed if row.id == self.chat.id), 0)

    def editing(self, messages: Sequence[Message]) -> Message | None:
        """One's own message that `?edit=` asks to change."""
        if not self.request.GET.get("edit"):
            return None
        wanted = number(self.request.GET["edit"])
        mine = (one for one in messages if one.sender == self.me and not one.deleted)
        return next((one for one in mine if one.id == wanted), None)

    def roster(self, count: int) -> dict[str, Any]:
        """The members, with their roles, and what the one who asks may do about them."""
        persons = people(self.who, [member.user for member in self.members])
        listed: list[tuple[Person, Member]] = list(zip(persons, self.members, strict=True))
        return {
            "roster": listed,
            "roster_rest": max(count - len(listed), 0),
            "owner": self.owner,
            "me": self.me,
        }


class RoomFeedView(RoomMixin):
    """What is new in a chat, as JSON: `after` a cursor, or what is `before` one."""

    json_only = True

    def get(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        before, after = place(request.GET, "before"), place(request.GET, "after")
        info = self.chat.info()
        if before is not None:
            page = self.read(before=before)
        else:
            page = self.read(after=after if after is not None else 0)
        data: dict[str, Any] = {
            "messages": self.as_json(page.messages),
            "gap": page.gap,
            "gap_text": removed(page.gap),
            "has_more": page.has_more,
            "reset": page.reset,
            "title": self.title(info.title, info.member_count),
            "edits": info.edits,
            "read": {member.user: member.read_id for member in self.members},
        }
        if before is None:
            newest = self.chat.history(self.me, limit=WATCHED).messages
            data["seen"] = self.seen(newest)
            if request.GET.get("edits", "") != str(info.edits):
                data["changed"] = self.as_json([one for one in newest if one.edited_at])
        return JsonResponse(data)

    def as_json(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """The messages with their labels; with their markup, if it is asked for."""
        return [message_json(self, bubble) for bubble in self.bubbles(messages)]


def removed(gap: int) -> str:
    """What is said where messages are missing."""
    if not gap:
        return ""
    text = ngettext("%(count)s older message was removed.", "%(count)s older messages were removed.", gap)
    return text % {"count": gap}


def message_json(view: MessagingView, bubble: Bubble) -> dict[str, Any]:
    """A message as all JSON here has it."""
    message = bubble.message
    data = {
        "id": message.id,
        "cursor": message.cursor,
        "sender": message.sender,
        "label": bubble.author.label,
        "mine": bubble.mine,
        "body": message.body,
        "data": message.data,
        "reply_to": message.reply_to,
        "sent_at": message.sent_at.isoformat(),
        "edited_at": message.edited_at.isoformat() if message.edited_at else None,
        "deleted": message.deleted,
    }
    if view.request.GET.get("html"):
        context = {"bubble": bubble, "chat": {"chat_id": message.chat_id}}
        name = "django_redis_messaging/_message.html"
        data["html"] = render_to_string(name, context, request=view.request)
    return data
