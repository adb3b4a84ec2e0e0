"""Events as JSON, as in the feeds that are polled; made once for all users who get the same."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import thread_time
from typing import Any, TypeVar

from django.db import close_old_connections
from django.http import HttpRequest
from django.utils import timezone, translation
from django.utils.translation import ngettext

from ...services.chats import Changes, ChatSummary
from ...services.live import (
    ChatsChanged,
    LiveEvent,
    MailChanged,
    PresenceChanged,
    RoomChanged,
    RoomClosed,
)
from ...services.live.values import known_after
from .. import bell
from ..base import MessagingView
from ..fitting import split
from ..presentation import NAMES_IN_TITLE, chat_rows
from ..texts import visible_text
from ..views.chats import ChatsFeedView
from ..views.feeds import RoomFeedView

T = TypeVar("T")


class Renderer:
    """Makes JSON of events for the user of a request. What may read the database runs in a thread."""

    def __init__(self, view: MessagingView) -> None:
        request = self._request = view.request
        self._me = view.me
        self._identity = view.active_identity
        self._html = bool(request.GET.get("html"))
        self._language = translation.get_language()
        self._zone = timezone.get_current_timezone()
        #: seconds of CPU that rendering has taken; what other streams have rendered doesn't count
        self.spent = 0.0
        #: what the JSON depends on besides the event
        self._variant = (self._html, self._language, str(self._zone), _place(request))

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
                return "presence", self._localized(partial(_presence, event)), None
            case RoomClosed():
                return "closed", _dump({"chat": event.chat_id}), None
        raise TypeError(f"{type(event).__name__} has no JSON.")

    async def _room(self, event: RoomChanged) -> tuple[str, RoomChanged | None]:
        changes = event.changes
        variant = (event.since, _room_variant(changes, self._me))
        shared, count = await self._once(event.shared, variant, partial(self._shared_room, changes))
        part, rest = split(changes, count)
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
        view = RoomFeedView()
        self._set_up(view, chat_id=changes.chat_id)
        data, count = view.fitting_part(changes)
        del data["read_id"], data["unread"]
        return _dump({"changed": [], **data}), count

    async def _chats(self, event: ChatsChanged) -> str:
        own = _dump({"complete": event.complete, "gone": event.gone})
        if event.complete:  # clients have the HTML already, or read the feed
            make = partial(self._rows, event.chats, html=False)
            return _joined(own, await self._in_thread(make))
        rows = [
            await self._once(event.shared, _row_variant(chat, self._me), partial(self._row, chat))
            for chat in event.chats
        ]
        return _joined(own, f'{{"chats": [{", ".join(rows)}]}}')

    def _row(self, chat: ChatSummary) -> str:
        [row] = self._list([chat], html=self._html)
        return _dump(row)

    def _rows(self, chats: Sequence[ChatSummary], *, html: bool) -> str:
        return _dump({"chats": self._list(chats, html=html)})

    def _list(self, chats: Sequence[ChatSummary], *, html: bool) -> list[dict[str, Any]]:
        view = ChatsFeedView()
        self._set_up(view)
        rows = chat_rows(chats, people=view.people, me=self._me)
        return [view.as_json(row, html=html) for row in rows]

    def _set_up(self, view: MessagingView, **kwargs: str) -> None:
        view.setup(self._request, **kwargs)
        view.me, view.active_identity = self._me, self._identity

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


def _presence(event: PresenceChanged) -> str:
    count = len(event.online)
    text = ngettext("%(count)d online", "%(count)d online", count) % {"count": count} if count else ""
    return _dump({"chat": event.chat_id, "online": sorted(event.online), "text": text})


def _place(request: HttpRequest) -> tuple[Any, ...]:
    """What the URLs in HTML depend on."""
    match = request.resolver_match
    return (match.namespace if match else None, request.META.get("SCRIPT_NAME"), request.get_host())


def _room_variant(changes: Changes, me: str) -> tuple[Any, ...]:
    """What decides whether two members get the same JSON, apart from their own positions."""
    messages = [*changes.messages, *changes.edited]
    is_personal = (
        me == changes.last_sender
        or any(message.sender == me or me in message.mentions for message in messages)
        or changes.member_count == 2  # each sees the name of the other
        or (not visible_text(changes.title) and me in changes.members[:NAMES_IN_TITLE])
    )
    hidden = tuple(one.reply_to for one in messages if one.reply_to and one.reply_to < changes.oldest_id)
    edited = tuple(message.id for message in changes.edited)
    return (changes.role, tuple(changes.typists), edited, hidden, me if is_personal else "")


def _row_variant(chat: ChatSummary, me: str) -> tuple[Any, ...]:
    """What decides whether two members see the same row."""
    message = chat.last_message
    is_personal = me in chat.members or (message is not None and me == message.sender)
    return (chat.chat_id, chat.unread, chat.muted, message is not None, me if is_personal else "")


def _dump(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False)


def _joined(one: str, other: str) -> str:
    """The JSON of two objects, neither of which is empty, as one object."""
    return f"{one[:-1]}, {other[1:]}"
