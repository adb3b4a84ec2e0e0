"""Changes as they happen: a stream of server-sent events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs

from asgiref.sync import sync_to_async
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.debug import sensitive_variables

from ...core.keys import name
from ...errors import InvalidArgument, MessagingError
from ...services.live import Known
from ...services.live.events import MAX_ROOMS
from ...services.live.hub import hub_of
from .. import problems
from ..base import MessagingView
from ..params import INVALID_POSITION, check_text
from ..problems import Problem
from .access import Access, can_stream
from .sending import EventSender
from .shutdown import watch_signals

HEADERS = {
    "Content-Type": "text/event-stream",
    # compressed or buffered, events would be late
    "Content-Encoding": "identity",
    "X-Accel-Buffering": "no",
}


@method_decorator(login_not_required, name="dispatch")
class LiveView(MessagingView):
    """What changes for the user, as server-sent events under ASGI. They begin with the state.

    The parameters say what else the client wants:

    - `room` the id of a chat to follow with its messages; repeat it for several
    - `after` what the client knows of each, in the same order: a cursor, a message id, or the `known` of an
      event; empty for the newest message
    - `html` for HTML instead of texts, as in the feeds
    - `user` the member id for which the page was made: another user gets no stream

    The header `Last-Event-ID` says up to where the client has received the chats. Clients that don't accept
    `text/event-stream` poll the feeds.
    """

    json_only = True
    invalid_message = INVALID_POSITION

    @method_decorator(sensitive_variables())
    async def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:  # type: ignore[override]
        try:
            await sync_to_async(self.check_access)(request)
            check_text(request)
            if not can_stream(request):
                raise Problem(problems.NOT_LIVE)
            response: HttpResponseBase = await View.dispatch(self, request, *args, **kwargs)  # type: ignore[misc]
        except (Problem, MessagingError) as error:
            response = self.answer_failure(error)
        return self.finish(response)

    def check_access(self, request: HttpRequest) -> None:
        super().check_access(request)
        self.access = Access(request, self.me, self.active_identity)

    async def get(self, request: HttpRequest) -> HttpResponseBase:
        rooms = self.checked_rooms()
        hub = hub_of()
        token = await hub.admit(self.me)
        if not token:
            raise Problem(problems.TOO_MANY_STREAMS)
        watch_signals()
        sender = EventSender(self, self.access, hub, rooms, token)
        return StreamingHttpResponse(sender.stream(), headers=HEADERS)

    async def head(self, request: HttpRequest) -> HttpResponseBase:
        """The headers of a stream, without one: it would be open, and count, with nobody to read it."""
        self.checked_rooms()
        return HttpResponse(headers=HEADERS)

    def checked_rooms(self) -> dict[str, Known]:
        """The chats to follow. Raises the Problem if the request can't be answered with a stream."""
        if self.request.GET.get("user", self.me) != self.me:
            raise Problem(problems.OTHER_USER)
        rooms = self.rooms()
        if "text/event-stream" not in self.request.headers.get("Accept", ""):
            raise Problem(problems.STREAM_ONLY)
        return rooms

    def rooms(self) -> dict[str, Known]:
        """The chats to follow, and what the client knows of them."""
        query = self.request.GET
        rooms = _parse_rooms(query.getlist("room"), query.getlist("after"))
        received = parse_qs(self.request.headers.get("Last-Event-ID", ""), keep_blank_values=True)
        later = _parse_rooms(received.get("room", []), received.get("after", []))
        return rooms | {chat_id: later[chat_id] for chat_id in rooms.keys() & later.keys()}


def _parse_rooms(ids: Sequence[str], known: Sequence[str]) -> dict[str, Known]:
    if len(ids) > MAX_ROOMS or len(known) > len(ids):
        raise InvalidArgument(f"There can be {MAX_ROOMS} rooms, each with one position.")
    texts = [*known, *[""] * (len(ids) - len(known))]
    return {name(chat_id, "room"): Known.parse(text) for chat_id, text in zip(ids, texts, strict=True)}
