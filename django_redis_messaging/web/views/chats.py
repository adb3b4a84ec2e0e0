"""The list of chats: the page, and the JSON that keeps it up to date."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string

from ...errors import InvalidArgument
from ...services.chats import ChatSummary
from ..base import MessagingPage, MessagingView
from ..conditional import conditional_json
from ..presentation import ChatRow, chat_rows

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
            "chats": [self.as_json(row, html=bool(request.GET.get("html"))) for row in rows],
            "unread": sum(row.summary.unread for row in rows),
            "has_more": len(rows) == CHATS_PER_PAGE,
        }
        return conditional_json(request, data)

    def as_json(self, row: ChatRow, *, html: bool) -> dict[str, Any]:
        """A chat of the list; `html`: with its HTML instead of its texts."""
        message = row.summary.last_message
        data: dict[str, Any] = {
            "id": row.id,
            "version": row.version,
            "group": row.is_group,
            "unread": row.summary.unread,
            "muted": row.summary.muted,
            "members": row.summary.member_count,
            "last_id": message.id if message else None,
            "last_sent_at": message.sent_at.isoformat() if message else None,
        }
        if html:
            name = "django_redis_messaging/_row.html"
            return {**data, "html": render_to_string(name, {"row": row}, request=self.request)}
        looks = row.other.looks if row.other else {}
        return {**data, "title": row.title, **looks, "excerpt": row.excerpt}
