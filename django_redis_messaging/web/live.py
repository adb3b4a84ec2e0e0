"""Changes as they happen: a stream of server-sent events."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from time import monotonic, thread_time
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlencode

from asgiref.sync import sync_to_async
from django.contrib.auth.decorators import login_not_required
from django.db import close_old_connections
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.utils import timezone, translation
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.debug import sensitive_variables

from .. import conf
from ..core.encoding import name
from ..errors import InvalidArgument, MessagingError
from ..services.chats import Changes, ChatSummary
from ..services.live import (
    ChatsChanged,
    Known,
    LiveEvent,
    MailChanged,
    PresenceChanged,
    RoomChanged,
    RoomClosed,
)
from ..services.live.hub import MAX_ROOMS, Hub, hub_of
from ..services.live.stream import Stream, known_after
from . import bell, problems
from .base import INVALID_POSITION, MessagingView, check_text, read_quoted
from .people import People
from .problems import Problem
from .rendering import (
    MAX_BYTES,
    Reader,
    changes_json,
    changes_variant,
    chat_rows,
    presence_json,
    row_json,
    row_variant,
    split_changes,
)
from .stream_access import Access, can_stream, release_thread

T = TypeVar("T")

logger = logging.getLogger(__name__)

HEADERS = {
    "Content-Type": "text/event-stream",
    # compressed or buffered, events would be late
    "Content-Encoding": "identity",
    "X-Accel-Buffering": "no",
}
#: seconds without an event after which one is sent that says nothing: proxies close idle connections
HEARTBEAT = 15.0
#: seconds between two checks whether the user may still use the pages
ACCESS_INTERVAL = 60.0
#: seconds after which the check is repeated when the user signs out: Django sends the signal first, then
#: deletes the session
SIGN_OUT_TIME = 1.0
#: seconds for which a client may take nothing of what was sent
MAX_STALL = 60.0
#: seconds of CPU that a stream may take for rendering without a pause
MAX_BURST = 0.01
#: ms after which clients reconnect, at random: many may have lost the same server
MIN_RETRY, MAX_RETRY = 500, 3000


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


class EventSender:
    """Sends the events of one stream."""

    def __init__(
        self, view: MessagingView, access: Access, hub: Hub, rooms: Mapping[str, Known], token: str
    ) -> None:
        self._hub = hub
        self._token = token
        self._me = view.me
        #: what the client knows of each chat that it follows
        self._rooms = dict(rooms)
        self._renderer = Renderer(view)
        self._request = view.request
        self._access = access

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """The text of the stream, until its lifetime or the session ends, the client disconnects, or the
        server cancels the request because it stops."""
        # after middleware, which may use both after the view
        await release_thread()
        self._access.release(self._request)
        ends = monotonic() + conf.current().LIVE_LIFETIME * random.uniform(0.8, 1)  # noqa: S311
        try:
            async with self._hub.stream(self._me, self._rooms, token=self._token) as stream:
                yield f"retry: {random.randint(MIN_RETRY, MAX_RETRY)}\n\n".encode()  # noqa: S311
                check_at = monotonic() + ACCESS_INTERVAL
                events: deque[LiveEvent] = deque()
                while monotonic() < ends and not stream.is_ended:
                    if not events:
                        wait = min(HEARTBEAT, min(check_at, ends) - monotonic())
                        events.extend(await stream.take(max(wait, 0)))
                    must_check = stream.must_check()
                    if must_check or monotonic() >= check_at:
                        if not await self._access.holds():
                            return
                        check_at = monotonic() + (SIGN_OUT_TIME if must_check else ACCESS_INTERVAL)
                    text = await self._next_text(stream, events)
                    with self._limited_stall(stream):
                        yield (text or "event: ping\ndata: {}\n\n").encode()
                    del text  # many streams wait here
                    await self._pause()
        except asyncio.CancelledError:
            # If the server still sends what it gets, the client receives the end of the answer.
            if (task := asyncio.current_task()) is not None:
                task.uncancel()

    async def _next_text(self, stream: Stream, events: deque[LiveEvent]) -> str:
        """The text of the next events: of all, unless they are long, or rendering them takes long."""
        text = ""
        while events and len(text) < MAX_BYTES and self._renderer.spent < MAX_BURST:
            event = events.popleft()
            if isinstance(event, RoomChanged) and event.chat_id not in stream.rooms:
                continue  # closed since the event was taken
            name, data, rest = await self._renderer.render(event)
            if isinstance(event, RoomChanged):
                self._rooms[event.chat_id] = rest.since if rest else event.known
            elif isinstance(event, RoomClosed):
                self._rooms.pop(event.chat_id, None)
            if rest:
                events.append(rest)
            text += f"event: {name}\nid: {urlencode(self._known)}\ndata: {data}\n\n"
        return text

    async def _pause(self) -> None:
        """After long rendering, leave the CPU to other users for at least as long. All streams of a user
        together get no larger share of it than one."""
        if self._renderer.spent >= MAX_BURST:
            await asyncio.sleep(self._renderer.spent * self._hub.count_streams(self._me))
            self._renderer.spent = 0.0

    @contextmanager
    def _limited_stall(self, stream: Stream) -> Iterator[None]:
        """Drop the stream, and cancel the request, if the client takes nothing of what is sent in this block
        for too long."""
        timer = asyncio.get_running_loop().call_later(
            MAX_STALL, self._give_up, stream, asyncio.current_task()
        )
        try:
            yield
        finally:
            timer.cancel()

    def _give_up(self, stream: Stream, task: asyncio.Task[Any] | None) -> None:
        logger.warning("A client takes nothing of what it is sent: the stream of %r ends.", self._me)
        self._hub.drop(stream)
        if task is not None:
            task.cancel()

    @property
    def _known(self) -> list[tuple[str, str]]:
        """The parameters with which a later request continues."""
        rooms = [("room", chat_id) for chat_id in self._rooms]
        return [*rooms, *(("after", known.encode()) for known in self._rooms.values())]


class Renderer:
    """Makes JSON of events for the user of a request. What may read the database runs in a thread."""

    def __init__(self, view: MessagingView) -> None:
        self._reader = view.reader
        self._identity = view.active_identity
        self._service = view.service
        self._language = translation.get_language()
        self._zone = timezone.get_current_timezone()
        #: seconds of CPU that rendering has taken; what other streams have rendered doesn't count
        self.spent = 0.0
        #: what the JSON depends on besides the event
        self._variant = (self._reader.html, self._language, str(self._zone), _place(view.request))

    async def render(self, event: LiveEvent) -> tuple[str, str, RoomChanged | None]:
        """The name of an event, its JSON, and what doesn't fit into it: the next event."""
        match event:
            case RoomChanged():
                return "room", *await self._room(event)
            case ChatsChanged():
                return "chats", await self._chats(event), None
            case MailChanged():
                return "bell", _dump(bell.as_json(event.status)), None
            case PresenceChanged():
                make = partial(presence_json, event.chat_id, event.online)
                return "presence", _dump(self._localized(make)), None
            case RoomClosed():
                return "closed", _dump({"chat": event.chat_id}), None
        raise TypeError(f"{type(event).__name__} has no JSON.")

    async def _room(self, event: RoomChanged) -> tuple[str, RoomChanged | None]:
        changes = event.changes
        variant = (event.since, changes_variant(changes, self._reader.me))
        shared, count = await self._once(event.shared, variant, partial(self._shared_room, changes))
        part, rest = split_changes(changes, count)
        own = {
            "chat": part.chat_id,
            "known": known_after(part).encode(),
            "since": event.since.numbers(),
            "read_id": part.read_id,
            "unread": part.unread,
        }
        text = _joined(_dump(own), shared)
        return text, replace(event, changes=rest, since=known_after(part)) if rest else None

    def _shared_room(self, changes: Changes) -> tuple[str, int]:
        quoted = read_quoted(
            self._service(changes.chat_id), self._reader.me, [*changes.messages, *changes.edited]
        )
        data, count = changes_json(changes, quoted, people=People(self._identity), reader=self._reader)
        del data["read_id"], data["unread"]
        return _dump({"changed": [], **data}), count

    async def _chats(self, event: ChatsChanged) -> str:
        own = _dump({"complete": event.complete, "gone": event.gone})
        if event.complete:  # clients have the HTML already, or read the feed
            reader = replace(self._reader, html=False)
            rows = await self._in_thread(partial(self._rows, event.chats, reader))
        else:
            rows = [
                await self._once(event.shared, row_variant(chat, self._reader.me), partial(self._row, chat))
                for chat in event.chats
            ]
        return _joined(own, f'{{"chats": [{", ".join(rows)}]}}')

    def _row(self, chat: ChatSummary) -> str:
        [row] = self._rows([chat], self._reader)
        return row

    def _rows(self, chats: Sequence[ChatSummary], reader: Reader) -> list[str]:
        rows = chat_rows(chats, people=People(self._identity), me=reader.me)
        return [_dump(row_json(row, reader)) for row in rows]

    async def _once(self, shared: dict[Any, Any], variant: tuple[Any, ...], make: Callable[[], T]) -> T:
        """What `make` returns; it is called once for all events with the same `shared` and variant."""
        key = (self._variant, variant)
        if key not in shared:
            shared[key] = asyncio.ensure_future(self._in_thread(make))
        made: T = await asyncio.shield(shared[key])  # a stream that ends must not take it from the others
        return made

    async def _in_thread(self, make: Callable[[], T]) -> T:
        return await asyncio.to_thread(self._with_fresh_connections, make)

    def _with_fresh_connections(self, make: Callable[[], T]) -> T:
        begun = thread_time()
        close_old_connections()
        try:
            return self._localized(make)
        finally:
            close_old_connections()
            self.spent += thread_time() - begun

    def _localized(self, make: Callable[[], T]) -> T:
        with translation.override(self._language), timezone.override(self._zone):
            return make()


def _place(request: HttpRequest) -> tuple[Any, ...]:
    """What the URLs in HTML depend on."""
    match = request.resolver_match
    return (match.namespace if match else None, request.META.get("SCRIPT_NAME"), request.get_host())


def _dump(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False)


def _joined(one: str, other: str) -> str:
    """The JSON of two objects, neither of which is empty, as one object."""
    return f"{one[:-1]}, {other[1:]}"
