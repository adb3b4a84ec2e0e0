"""One message: the page that shows texts too long for the room."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse

from .. import problems
from ..base import MessagingPage
from ..params import MAX_ID_DIGITS
from ..presentation import MessageView
from ..problems import Problem
from ..texts import markup, split
from .feeds import message_json
from .rooms import RoomMixin


class MessagePageView(RoomMixin, MessagingPage):
    """The whole text of a message, and what can be done with it. Long texts are shown in parts: `?from=` the
    position of a character selects one."""

    template_name = "django_redis_messaging/message.html"

    def get(self, request: HttpRequest, chat_id: str, message_id: str) -> HttpResponse:
        item = self.find(parse_number(message_id))
        if self.wants_json:
            data = {"message": message_json(self, item)}
            return JsonResponse(data, json_dumps_params={"ensure_ascii": False})
        parts = split(item.message.body)
        context = {"chat": {"chat_id": chat_id}, "item": item, **self.part(parts, item)}
        return self.page(context)

    def find(self, message_id: int) -> MessageView:
        """The message as the user sees it. Raises the Problem for one that doesn't exist."""
        # Also reads the chat for an id that no message can have: outsiders get 404 whatever the id.
        page = self.chat.history(self.me, before=message_id + 1, limit=1)
        found = [one for one in page.messages if one.id == message_id and not one.deleted]
        if not found:
            raise Problem(problems.GONE)
        return self.message_views(found, owner=page.role == "owner")[0]

    def part(self, parts: Sequence[str], item: MessageView) -> dict[str, Any]:
        """The part of the text that `?from=` selects, and the positions of its neighbours."""
        starts = [0, *accumulate(len(part) for part in parts[:-1])]
        index = bisect_right(starts, parse_number(self.request.GET.get("from", ""))) - 1
        return {
            "part": markup(parts[index], mentions=item.mentions, own=item.own_name),
            "number": index + 1,
            "count": len(parts),
            "previous": starts[index - 1] if index else None,
            "next": starts[index + 1] if index + 1 < len(parts) else None,
        }


def parse_number(value: str) -> int:
    """The number in a URL; 0 for anything else."""
    return int(value) if value.isascii() and value.isdigit() and len(value) <= MAX_ID_DIGITS else 0
