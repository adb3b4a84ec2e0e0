"""The hub: one for all live streams of an event loop.

Hints say what has changed (hints.py); they can be lost, so the hub also polls every few seconds. What may
have changed is read once for all streams (reading.py), and each stream keeps it for its reader (stream.py). A
stream registers first and reads the state afterwards, as in Zulip, so that nothing is missed in between.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from ... import conf
from ...core import clients, encoding
from ...core.commands import batched
from ...core.encoding import name
from ...core.operations import Command, Gather, Steps, aperform
from ...errors import InvalidArgument, MessagingError
from ..chats.joining import HALF
from ..chats.keys import ChatKeys, is_direct, newest_keys
from ..common.arguments import UserOrId, member_id
from ..mailboxes.mailbox import MailboxKeys
from ..users.keys import UserKeys
from .hints import EVERYTHING, INDEX, MAILBOX, POSITION, SIGNED_OUT, TYPING, ChangeHint, HintSubscription
from .presence import Presence, renew_while_open
from .reading import JOINED, Reading, Registry, WatchedChat
from .stream import Known, LiveEvent, Stream

logger = logging.getLogger(__name__)

#: chats that a stream follows with their messages
MAX_ROOMS = 10
#: seconds between two polls …
INTERVAL = 3.0
#: … or more: a poll takes at most this share of the time
MAX_SHARE = 0.05
#: seconds for which the hub keeps its connection after the last stream has ended
LINGER = 5.0


async def events(
    user: UserOrId, *, rooms: Mapping[str, Known] | Iterable[str] = (), using: str | None = None
) -> AsyncGenerator[LiveEvent, None]:
    """What changes for a user, as it happens: an async generator that doesn't end by itself.

    It begins with the state: `ChatsChanged` with the newest 50 chats, `MailChanged`, and a `RoomChanged` for
    each of the `rooms`, chats to follow with their messages. These begin with the newest message, or after
    what the reader knows: `{chat_id: Known(cursor)}`, or the `known` of an earlier event. Then nothing is
    missed and nothing comes twice, whatever fails in between. `RoomClosed` follows where the user is not a
    member.

    All streams of a process share one subscription, and one reading of each change. While the code that
    iterates is busy, changes accumulate in Redis. Close the generator (`contextlib.aclosing`) or cancel its
    task to end it.

    >>> import asyncio, contextlib
    >>> async def follow():
    ...     chat = await Chat.acreate("ann", ["bob"], "One", chat_id="live")
    ...     stream = live.events("bob", rooms={"live": live.Known(0)})
    ...     async with contextlib.aclosing(stream):
    ...         async for event in stream:
    ...             if isinstance(event, live.RoomChanged):
    ...                 return [message.body for message in event.changes.messages]
    >>> asyncio.run(follow())
    ['One']
    """
    known = dict(rooms) if isinstance(rooms, Mapping) else {chat_id: Known() for chat_id in rooms}
    user = member_id(user, "user")
    for chat_id in known:
        name(chat_id, "chat_id")
    if len(known) > MAX_ROOMS:
        raise InvalidArgument(f"rooms must have at most {MAX_ROOMS} items, not {len(known)}.")
    async with hub_of(using).stream(user, known) as stream:
        while True:
            for event in await stream.take():
                yield event


_hubs: dict[tuple[str, str, int], tuple[asyncio.AbstractEventLoop, Hub]] = {}


def hub_of(using: str | None = None) -> Hub:
    """The hub of the running event loop for an alias and the current prefix."""
    loop, alias = asyncio.get_running_loop(), using if using is not None else conf.alias()
    key = (alias, encoding.current_prefix(), id(loop))
    found = _hubs.get(key)
    if found is not None and found[0] is loop:
        return found[1]
    for other, (owner, _) in list(_hubs.items()):
        if owner.is_closed():
            del _hubs[other]
    hub = Hub(alias)
    _hubs[key] = (loop, hub)
    return hub


def open_streams() -> int:
    """How many streams are open in this process."""
    return sum(hub.number_of_streams for loop, hub in list(_hubs.values()) if not loop.is_closed())


class Hub:
    """The live streams of one event loop, for one alias and prefix."""

    def __init__(self, alias: str) -> None:
        prefix = encoding.current_prefix()
        self._registry = Registry()
        self._reading = Reading(alias, self._registry)
        self._presence = Presence(using=alias)
        self._polling = Polling(alias, prefix, self._registry, self._reading, self._presence)
        endpoint = clients.async_client(alias).endpoint
        self._hints = HintSubscription(endpoint, prefix, self.receive, self._polling.hints_lost)
        #: token of each stream that counts as one of its user → the user
        self._tokens: dict[str, str] = {}
        self._loops: list[asyncio.Task[None]] = []
        self._ending: asyncio.TimerHandle | None = None

    @property
    def number_of_streams(self) -> int:
        """How many streams are open."""
        return self._registry.size

    @property
    def users(self) -> list[str]:
        """Those who have streams."""
        return list(self._registry.users)

    def count_streams(self, user: str) -> int:
        """How many of them are the user's."""
        return len(self._registry.streams_of(user))

    async def admit(self, user: str) -> str:
        """The token of a new stream, with which the user is online; empty if there are too many."""
        token = secrets.token_urlsafe(9)
        is_full = self.number_of_streams >= conf.current().LIVE_MAX_PER_PROCESS
        return token if not is_full and await self._presence.aenter(user, token) else ""

    @asynccontextmanager
    async def stream(
        self, user: str, rooms: Mapping[str, Known], *, token: str = ""
    ) -> AsyncGenerator[Stream, None]:
        """A stream of what changes for a user; `rooms`: the chats to follow, and what the reader knows of
        them; `token`: of a stream that was admitted, others don't count."""
        stream = Stream(user, rooms, read_more=self._reading.mark_behind, token=token)
        self._begin()
        self._registry.add(stream)
        if token:
            self._tokens[token] = user
        try:
            await self._hints.attempted.wait()
            for chat_id in rooms:
                self._reading.mark_behind(chat_id)
            self._reading.mark_user(user)
            yield stream
        finally:
            self.drop(stream)

    def drop(self, stream: Stream) -> None:
        """Forget a stream, whatever its reader does."""
        if stream not in self._registry.streams_of(stream.user):
            return
        stream.end()
        self._registry.remove(stream)
        if self._tokens.pop(stream.token, None):
            self._reading.start(self._leave(stream.user, stream.token))
        if not self._registry.users:
            self._ending = asyncio.get_running_loop().call_later(LINGER, self.close)

    def receive(self, hint: ChangeHint) -> None:
        """Mark what has changed."""
        kind, name, user = hint
        if kind == SIGNED_OUT:
            for stream in self._registry.streams_of(name):
                stream.request_check()
        elif kind not in (INDEX, MAILBOX):
            self._reading.chat_changed(name, POSITION + user if kind == POSITION else kind)
        elif name in self._registry.users:
            if kind == INDEX:
                self._reading.mark_index(name, JOINED)
            else:
                self._reading.mark_mailbox(name)

    def close(self) -> None:
        """Close the connection, and stop reading."""
        for task in self._loops:
            task.cancel()
        self._loops.clear()
        self._reading.close()

    def _begin(self) -> None:
        """Receive hints, and poll, if that is not being done."""
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
        if not self._loops:
            self._hints.attempted.clear()
            renewing = renew_while_open(self._presence, self._tokens)
            self._loops = [*map(self._reading.start, (self._hints.run(), self._polling.run(), renewing))]

    async def _leave(self, user: str, token: str) -> None:
        try:
            await self._presence.aleave(user, token)
        except MessagingError as error:
            logger.warning("A stream of %r counts for some seconds after its end: %s", user, error)


class Polling:
    """Compares everything that streams follow with the last poll, and marks what has changed."""

    def __init__(
        self, alias: str, prefix: str, registry: Registry, reading: Reading, presence: Presence
    ) -> None:
        self._alias = alias
        self._prefix = prefix
        self._registry = registry
        self._reading = reading
        self._presence = presence
        self._soon = asyncio.Event()
        #: whether hints were lost since the last poll
        self._lost = False

    def hints_lost(self) -> None:
        """Poll at once, and have everything read again: no poll notices that a position has moved."""
        self._lost = True
        self._soon.set()

    async def run(self) -> None:
        """Poll until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self._poll()
            except MessagingError as error:
                logger.warning("Polling for changes failed, retrying: %s", error)
            pause = max(INTERVAL, (loop.time() - began) / MAX_SHARE)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._soon.wait()
            self._soon.clear()

    async def _poll(self) -> None:
        chats, users = list(self._registry.chats), list(self._registry.users)
        rooms = [chat_id for chat_id in chats if self._registry.chats[chat_id].rooms]
        if self._lost:
            self._lost = False
            self._mark_all(rooms, users)
        found = await aperform(self._alias, _read_states(self._prefix, chats, rooms, users))
        newest, numbers, indexes, mailboxes = found
        for chat_id, value in zip(chats, newest, strict=True):
            self._compare_newest(chat_id, value)
        for chat_id, values in zip(rooms, numbers, strict=True):
            self._compare_numbers(chat_id, values)
        for user, index, mailbox in zip(users, indexes, mailboxes, strict=True):
            self._compare_user(user, (index, mailbox))
        await self._poll_who_is_online()

    async def _poll_who_is_online(self) -> None:
        rooms = [watched for watched in self._registry.chats.values() if watched.rooms and watched.members]
        members = frozenset[str]().union(*(watched.members for watched in rooms))
        online = await self._presence.aonline(list(members)) if members else set()
        suspended = await aperform(self._alias, _read_suspended(self._prefix, rooms)) if online else set()
        for watched in rooms:
            shows = watched.chat_id not in suspended
            watched.online = watched.members & online if shows else frozenset()
            for stream in watched.rooms:
                stream.put_online(watched.chat_id, watched.online)

    def _mark_all(self, rooms: Sequence[str], users: Sequence[str]) -> None:
        for chat_id in rooms:
            self._reading.mark_chat(chat_id)
        for user in users:
            self._reading.mark_user(user)

    def _compare_newest(self, chat_id: str, value: bytes | None) -> None:
        watched = self._registry.chats.get(chat_id)
        if watched is not None and watched.newest != value:
            watched.newest = value
            self._reading.mark_chat(chat_id)

    def _compare_numbers(self, chat_id: str, values: list[bytes | None]) -> None:
        watched = self._registry.chats.get(chat_id)
        if watched is not None and watched.numbers != values:
            is_first, watched.numbers = watched.numbers == "", values
            self._reading.mark_chat(chat_id, TYPING if is_first else EVERYTHING)

    def _compare_user(self, name: str, polled: tuple[Any, Any]) -> None:
        user = self._registry.users.get(name)
        if user is not None and user.polled != polled:
            if user.polled is not None:
                self._reading.mark_user(name)
            user.polled = polled


def _read_states(
    prefix: str, chats: Sequence[str], rooms: Sequence[str], users: Sequence[str]
) -> Steps[tuple[list[Any], list[Any], list[Any], list[Any]]]:
    """What changes with each chat, index and mailbox: the newest keys of chats, the numbers of edits and
    events of those that are open, the sizes of the users' indexes, and the newest keys of their mailboxes."""
    newest = yield Gather(newest_keys(prefix, [chat_id.encode() for chat_id in chats]))
    infos = [ChatKeys(prefix, chat_id).info for chat_id in rooms]
    numbers = yield from _pipelined([Command("HMGET", key, "edits", "event", reads=True) for key in infos])
    indexes = [UserKeys(prefix, user).chats for user in users]
    sizes = yield from _pipelined([Command("HLEN", key, reads=True) for key in indexes])
    mailboxes = yield Gather([MailboxKeys(prefix, user).newest for user in users])
    return newest, numbers, sizes, mailboxes


def _read_suspended(prefix: str, rooms: Sequence[WatchedChat]) -> Steps[set[str]]:
    """The direct chats in which one has blocked the other: neither sees there whether the other is online."""
    direct = [watched for watched in rooms if is_direct(watched.chat_id)]
    keys = [ChatKeys(prefix, watched.chat_id).members for watched in direct]
    commands = [
        Command("ZMSCORE", key, *watched.members, reads=True)
        for key, watched in zip(keys, direct, strict=True)
    ]
    replies = yield from _pipelined(commands)
    return {
        watched.chat_id
        for watched, scores in zip(direct, replies, strict=True)
        if any(score is not None and float(score) % 1 == HALF for score in scores)
    }


def _pipelined(commands: Sequence[Command]) -> Steps[list[Any]]:
    replies: list[Any] = []
    for page in batched(commands):
        replies += yield page
    return replies
