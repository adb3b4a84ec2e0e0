"""The list of chats: a page, and the same as JSON for its polls."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.loader import render_to_string

from ..base import MessagingPage, MessagingView
from ..bubbles import Row, rows

#: chats on a page of the list
LISTED = 100


class ListMixin(MessagingView):
    """Reads the list of chats, as the list and the room beside it show it."""

    def rows(self, *, after: str | None = None) -> list[Row]:
        """A page of the chats, newest activity first."""
        summaries = self.inbox(self.me).chats(limit=LISTED, after=after)
        return rows(summaries, identity=self.who, me=self.me)


class ChatsView(ListMixin, MessagingPage):
    """The list of chats, with what is unread and what was said last."""

    template_name = "django_redis_messaging/chats.html"

    def get(self, request: HttpRequest) -> HttpResponse:
        after = request.GET.get("after") or None
        try:
            listed = self.rows(after=after)
        except ValueError:
            # The chat the page before ended with is gone: begin anew.
            after, listed = None, self.rows()
        more = listed[-1].id if len(listed) == LISTED else None
        return self.page({"rows": listed, "more": more, "further": after is not None})


class ChatsFeedView(ListMixin):
    """The first page of the list as JSON, with each row's markup."""

    json_only = True

    def get(self, request: HttpRequest) -> HttpResponse:
        listed = self.rows()
        chats = [self.as_json(row) for row in listed]
        return JsonResponse({"chats": chats, "unread": sum(row.summary.unread for row in listed)})

    def as_json(self, row: Row) -> dict[str, Any]:
        """One chat of the list."""
        message = row.summary.last_message
        data: dict[str, Any] = {
            "id": row.id,
            "title": row.title,
            "unread": row.summary.unread,
            "muted": row.summary.muted,
            "members": row.summary.member_count,
            "excerpt": row.excerpt,
            "last_id": message.id if message else None,
            "last_sent_at": message.sent_at.isoformat() if message else None,
        }
        if self.request.GET.get("html"):
            name = "django_redis_messaging/_row.html"
            data["html"] = render_to_string(name, {"row": row}, request=self.request)
        return data
