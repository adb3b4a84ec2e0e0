"""What users do in a room: POST only, answered with a redirect, or with JSON if the request accepts it."""

from __future__ import annotations

import logging
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.middleware.csrf import get_token
from django.shortcuts import redirect
from django.utils.translation import gettext_lazy as _

from ...errors import MessagingError
from ...services.chats import Message
from ...signals import message_sent
from .. import problems
from ..base import ChatMixin, MessagingView
from ..forms import MessageForm, PositionForm, clean
from ..mentions import find_mentions, notify_mentioned
from ..params import INVALID_POSITION, parse_id, parse_position, shown_again
from ..presentation import add_authors
from ..problems import Answer, Problem
from ..texts import visible_text
from .feeds import message_json
from .rooms import RoomMixin

_logger = logging.getLogger(__name__)


class MessageMixin(RoomMixin):
    """Sends or changes a message. If that fails, the page shows the text again."""

    invalid_message = _("This message can't be sent.")

    def message_done(self, message: Message | None) -> HttpResponse:
        if message is None:
            raise Problem(problems.GONE)
        if not self.wants_json:
            return redirect(f"{self.url('room', self.chat.id)}?at={message.id}#m{message.id}")
        # The message is the user's own or has just been deleted: being an owner allows nothing more.
        (view,) = self.message_views([message], owner=False)
        data = {"message": message_json(self, view)}
        return JsonResponse(data, json_dumps_params={"ensure_ascii": False})

    def problem_page(self, problem: Answer, **context: Any) -> HttpResponse:
        """The page that shows the problem, with a form to send the same text again."""
        if self.request.POST.get("body") and problem.status not in (401, 404):
            context["draft"] = shown_again(self.request.POST)
        return super().problem_page(problem, **context)


class SendView(MessageMixin):
    """Sends a message. A repeated request with the same `request_id` returns the first message."""

    def post(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        data = clean(MessageForm(request.POST))
        self.count_use("send")
        chosen = request.POST.getlist("mentions")
        message = self.chat.send(
            self.me,
            data["body"],
            reply_to=data["reply_to"],
            mentions=find_mentions(self.active_identity, self.chat, self.me, data["body"], chosen),
            request_id=data["request_id"] or None,
        )
        if message.mentions:
            self.notify(message)
        message_sent.send_robust(type(self), request=request, message=message)
        return self.message_done(message)

    def notify(self, message: Message) -> None:
        """Notify the members whom the message mentions. It has been sent: a failure is logged."""
        try:
            title = visible_text(self.state().title)
        except MessagingError as error:
            _logger.warning("Notifying of mentions in %r failed: %s", message.chat_id, error)
            return
        url = f"{self.url('room', self.chat.id)}?at={message.id}"
        add_authors(self.people, [message], me=self.me)
        notify_mentioned(message, label=self.people[self.me].label, title=title, url=url)


class EditView(MessageMixin):
    """Replaces the body of one of the user's own messages."""

    def post(self, request: HttpRequest, chat_id: str, message_id: str) -> HttpResponse:
        number, body = parse_id(message_id), clean(MessageForm(request.POST))["body"]
        self.count_use("edit")
        return self.message_done(self.chat.edit(self.me, number, body))


class DeleteMessageView(MessageMixin):
    """Deletes a message, leaving a tombstone."""

    def post(self, request: HttpRequest, chat_id: str, message_id: str) -> HttpResponse:
        number = parse_id(message_id)
        self.count_use("edit")
        return self.message_done(self.chat.delete_message(self.me, number))


class AckView(ChatMixin):
    """Stores the position up to which the user has read."""

    invalid_message = INVALID_POSITION

    def post(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        up_to = parse_position(clean(PositionForm(request.POST))["up_to"])
        return self.done({"read_id": self.chat.ack(self.me, up_to)}, "room", chat_id)


class TypingView(ChatMixin):
    """Records that the user is typing. A chat stores at most one entry for each member."""

    def post(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        self.count_use("typing")
        self.chat.typing(self.me)
        return self.done({}, "room", chat_id)


class SessionView(MessagingView):
    """The user, and a CSRF token: for a page that was loaded before the user signed in again."""

    json_only = True

    def get(self, request: HttpRequest) -> HttpResponse:
        return JsonResponse({"user": self.me, "csrf": get_token(request)})
