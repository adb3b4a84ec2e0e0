"""Sends what changes for a user as server-sent events."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any
from urllib.parse import urlencode

from ... import conf
from ...services.live import Known, LiveEvent, RoomChanged, RoomClosed
from ...services.live.hub import Hub
from ...services.live.stream import Stream
from ..base import MessagingView
from ..fitting import MAX_BYTES
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
#: seconds of CPU that a stream may take for rendering without a pause
MAX_BURST = 0.01
#: ms after which clients reconnect, at random: many may have lost the same server
MIN_RETRY, MAX_RETRY = 500, 3000


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
            events: deque[LiveEvent] = deque()
            while monotonic() < ends and not stream.is_ended:
                if not events:
                    events.extend(await stream.take(min(HEARTBEAT, max(check_at - monotonic(), 0))))
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
