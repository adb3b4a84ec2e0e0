"""The search in a chat."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse

from ...services.chats import Changes
from ..base import MessagingPage
from ..params import INVALID_POSITION, get_position, get_search
from ..presentation import one_line
from .rooms import RoomMixin

#: messages on a page of results
RESULTS_PER_PAGE = 20


class SearchView(RoomMixin, MessagingPage):
    """The messages of a chat that contain a text, newest first. Each page searches up to 500 messages."""

    checks_membership_first = False
    template_name = "django_redis_messaging/search.html"
    invalid_message = INVALID_POSITION

    def get(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        state, query = self.state(), get_search(request.GET).strip()
        results = self.results(query, state) if query else {}
        return self.page({**self.chat_context(state), "q": query, **results})

    def results(self, query: str, state: Changes) -> dict[str, Any]:
        """The results, and where the next page begins."""
        self.count_use("search")
        before = get_position(self.request.GET, "before")
        found = self.chat.search(self.me, query, before=before, limit=RESULTS_PER_PAGE)
        self.add_people(state)
        views = self.message_views(found.messages, owner=False)
        return {
            "results": [(view, one_line(view.message)) for view in views],
            "older": None if found.complete else found.before,
        }
