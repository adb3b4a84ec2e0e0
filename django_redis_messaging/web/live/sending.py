"""Sends what changes for a user: as server-sent events, or in answer to a long poll."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import zlib
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any
from urllib.parse import urlencode

from ... import conf
from ...services.live import Known, LiveEvent, PresenceChanged, RoomChanged, RoomClosed
from ...services.live.hub import Hub
from ...services.live.stream import Stream
from ..base import MessagingView
from .access import Access, release_thread
from .rendering import Renderer

logger = logging.getLogger(__name__)

#: seconds without an event after which one is sent that says nothing: proxies close idle connections
HEARTBEAT = 15.0
#: seconds between two checks whether the user may still use the pages
ACCESS_INTERVAL = 60.0
#: seconds after which the check is repeated when the user signs out: Django sends the signal first, then
#: deletes the session
SIGN_OUT_TIME = 1.0
#: seconds for which a client may take nothing of what was sent
MAX_STALL = 60.0
#: seconds that a long poll lasts without an event, and that it waits for the state
LONG_POLL = 25.0
STATE_TIMEOUT = 5.0
#: ms after which clients reconnect, at random: many may have lost the same server
MIN_RETRY, MAX_RETRY = 500, 3000
#: parts of the JSON of a room that are news …
NEWS = ("messages", "changed", "events")
#: … and of all events that tell whether the state is the same
STATE = ("chat", "known", "typing", "read_id", "unread", "state")


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
        """The text of the stream, until its lifetime or the session ends, or the client disconnects."""
        # after middleware, which may use both after the view
        await release_thread()
        self._access.release(self._request)
        ends = monotonic() + conf.current().LIVE_LIFETIME * random.uniform(0.8, 1)  # noqa: S311
        async with self._hub.stream(self._me, self._rooms, token=self._token) as stream:
            yield f"retry: {random.randint(MIN_RETRY, MAX_RETRY)}\n\n".encode()  # noqa: S311
            check_at = monotonic() + ACCESS_INTERVAL
            while monotonic() < ends and not stream.is_ended:
                events = await stream.take(min(HEARTBEAT, max(check_at - monotonic(), 0)))
                must_check = stream.must_check()
                if must_check or monotonic() >= check_at:
                    if not await self._access.holds():
                        return
                    check_at = monotonic() + (SIGN_OUT_TIME if must_check else ACCESS_INTERVAL)
                text = "".join([await self._format(event) for event in events])
                del events  # many streams wait here
                with self._limited_stall(stream):
                    yield (text or "event: ping\ndata: {}\n\n").encode()
                del text

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

    async def poll(self, seen: str) -> dict[str, Any]:
        """The answer to a long poll: the state with what is new, or, if it is what `seen` stands for, the
        next events."""
        await release_thread()
        async with self._hub.stream(self._me, self._rooms, token=self._token) as stream:
            events = [await self._as_json(event) for event in await self._state(stream)]
            has_news = any(event["data"].get(part) for event in events for part in NEWS)
            state = _fingerprint(events)
            if state == seen and not has_news:
                events = [await self._as_json(event) for event in await _take_lasting(stream, LONG_POLL)]
                state = "" if events else state
        return {"events": events, "next": urlencode([*self._known, ("seen", state)])}

    async def _state(self, stream: Stream) -> list[LiveEvent]:
        """The first event of each kind."""
        events: list[LiveEvent] = []
        ends = monotonic() + STATE_TIMEOUT
        while len(events) < len(self._rooms) + 2 and monotonic() < ends:  # the list of chats, and the bell
            events += await _take_lasting(stream, ends - monotonic())
        return events

    async def _format(self, event: LiveEvent) -> str:
        name, data = await self._render(event)
        return f"event: {name}\nid: {urlencode(self._known)}\ndata: {data}\n\n"

    async def _as_json(self, event: LiveEvent) -> dict[str, Any]:
        name, data = await self._render(event)
        return {"event": name, "data": json.loads(data)}

    async def _render(self, event: LiveEvent) -> tuple[str, str]:
        if isinstance(event, RoomChanged):
            self._rooms[event.chat_id] = event.known
        elif isinstance(event, RoomClosed):
            self._rooms.pop(event.chat_id, None)
        return await self._renderer.render(event)

    @property
    def _known(self) -> list[tuple[str, str]]:
        """The parameters with which a later request continues."""
        rooms = [("room", chat_id) for chat_id in self._rooms]
        return [*rooms, *(("after", known.encode()) for known in self._rooms.values())]


def _fingerprint(events: Sequence[dict[str, Any]]) -> str:
    """Stands for the state that events describe."""
    states = []
    for event in events:
        data = event["data"]
        rows = [(row["id"], row["version"]) for row in data.get("chats", ())]
        states.append([event["event"], [data.get(part) for part in STATE], rows])
    return f"{zlib.crc32(json.dumps(sorted(states, key=str)).encode()):x}"


async def _take_lasting(stream: Stream, seconds: float) -> list[LiveEvent]:
    """Events, without those about who is online: a long poll would end with each of them."""
    ends = monotonic() + seconds
    while (left := ends - monotonic()) > 0:
        taken = await stream.take(left)
        events = [event for event in taken if not isinstance(event, PresenceChanged)]
        if events:
            return events
    return []
