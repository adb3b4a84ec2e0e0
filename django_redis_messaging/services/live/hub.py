"""The hub: one for all live streams of an event loop.

A hint, or a look every few seconds, marks a chat, an index or a mailbox; what is marked is read once for all
streams (reading.py). A stream registers first and reads the state afterwards, as in Zulip, so that nothing is
missed in between.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple
from urllib.parse import unquote

from redis.exceptions import RedisError

from ... import conf
from ...core import clients, keys
from ...core.commands import batched
from ...core.connection import ASYNCIO, Address, AsyncConnection
from ...core.keys import FORMAT, encoded, name
from ...core.operations import Command, Gather, Steps, aperform
from ...core.outcome import backoff
from ...core.topology import Endpoint, dial, refresh_topology
from ...errors import ChatNotFound, InvalidArgument, MessagingError
from ..chats.chat import MAX_READERS, Chat
from ..chats.direct import HALF, is_direct
from ..chats.inbox import Inbox
from ..chats.keys import ChatKeys, newest_keys
from ..chats.values import Changes, ChatSummary
from ..mailboxes.keys import MailboxKeys
from ..mailboxes.mailbox import Mailbox
from ..users.keys import UserKeys
from .presence import Presence, renew_while_open
from .stream import (
    BEHIND,
    EVERYTHING,
    JOINED,
    POSITION,
    TYPING,
    WHOLE,
    Known,
    LiveEvent,
    Marks,
    Resource,
    Stream,
)

logger = logging.getLogger(__name__)

#: seconds to connect and to subscribe
CONNECT_TIMEOUT = 2.0
#: seconds without a message after which a PING is sent; after two of them without a reply, the connection
#: counts as dead
PING_INTERVAL = 2.0
#: seconds: the first, and the longest, pause between two attempts to connect
FIRST_PAUSE = 0.1
MAX_PAUSE = 5.0


class Hint(NamedTuple):
    """What has changed."""

    #: see common/_live.lua; "x": the user has signed out somewhere
    kind: str
    #: chat id, or name of a user
    name: str
    #: the user whose position has moved
    user: str = ""


def channel(prefix: str) -> str:
    """The channel of the hints about all resources with this prefix."""
    return f"{prefix}:{FORMAT}:live"


def signing_out(prefix: str, user: str) -> Command:
    """The command that lets all streams of a user check at once whether they may go on."""
    return Command("PUBLISH", channel(prefix), f"xuser:{encoded(user)}")


def parse(payload: bytes) -> Hint | None:
    """Parse a hint; None if it is not one of this version.

    >>> parse(b"achat:caf%20e\\0ann")
    Hint(kind='a', name='caf e', user='ann')
    """
    try:
        resource, _, user = payload.decode().partition("\0")
    except UnicodeDecodeError:
        return None
    kind, (_, colon, name) = resource[:1], resource.partition(":")
    return Hint(kind, unquote(name) if "%" in name else name, user) if colon else None


class Hints:
    """Subscribes to the hints with one prefix, and stays subscribed: on a Cluster, one node delivers those of
    all nodes."""

    def __init__(
        self, endpoint: Endpoint, prefix: str, receive: Callable[[Hint], None], lost: Callable[[], None]
    ) -> None:
        self._endpoint = endpoint
        self._channel = channel(prefix)
        self._receive = receive
        #: called when hints may have been lost
        self._lost = lost
        #: set after the first attempt to subscribe, whether it succeeded or not
        self.attempted = asyncio.Event()

    async def run(self) -> None:
        """Receive hints until cancelled."""
        failures = 0
        while True:
            connection = AsyncConnection(self._node())
            try:
                await self._subscribe(connection)
                failures = 0
                await self._listen(connection)
            except (RedisError, OSError) as error:
                failures += 1
                logger.warning("Hints of changes are lost, reconnecting: %s", error)
                await self._refresh(error)
            finally:
                connection.close()
            self.attempted.set()
            await asyncio.sleep(backoff(failures, first=FIRST_PAUSE, longest=MAX_PAUSE))

    def _node(self) -> Address | None:
        """Any node of a Cluster, for each delivers all hints; None: the server that the alias names."""
        nodes = list(self._endpoint.router.addresses)
        return random.choice(nodes) if nodes else None  # noqa: S311

    async def _subscribe(self, connection: AsyncConnection) -> None:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            await dial(ASYNCIO, self._endpoint, connection, CONNECT_TIMEOUT)
            [reply] = await connection.exchange([("SUBSCRIBE", self._channel)], CONNECT_TIMEOUT)
        if isinstance(reply, Exception):
            raise reply
        if self.attempted.is_set():  # streams have begun without hints
            self._lost()
        self.attempted.set()

    async def _listen(self, connection: AsyncConnection) -> None:
        unanswered = 0
        while unanswered < 2:
            if not await connection.readable(PING_INTERVAL):
                await connection.send([("PING",)], PING_INTERVAL)
                unanswered += 1
                continue
            message = await connection.receive(PING_INTERVAL)
            unanswered = 0
            if isinstance(message, Exception):
                raise message
            if message[0] == b"message" and (hint := parse(message[2])) is not None:
                self._receive(hint)
        raise TimeoutError("the server does not answer")

    async def _refresh(self, error: Exception) -> None:
        """On a Cluster, the node may be gone: learn the others."""
        if self._endpoint.router.splits:
            await refresh_topology(ASYNCIO, self._endpoint, error, self._endpoint.router)


class Watched:
    """A chat that streams follow."""

    __slots__ = (
        "chat_id", "joined", "lists", "members", "moved", "newest", "numbers", "online", "rooms", "shown",
        "size",
    )  # fmt: skip

    def __init__(self, chat_id: str) -> None:
        self.chat_id = chat_id
        #: the streams in which the chat is open, and those that have it in their list
        self.rooms: set[Stream] = set()
        self.lists: set[Stream] = set()
        #: at the last look, "" before: the value of the chat's newest key, its numbers of edits and events
        self.newest: bytes | str | None = ""
        self.numbers: list[bytes | None] | str = ""
        #: number of members
        self.size = 0
        #: the members whose positions others see, and the state (`Changes.moved`) in which they were read
        self.shown: frozenset[str] = frozenset()
        self.moved: int | None = None
        #: the members of a chat that shows who is online; the number of its newest event when they were read
        self.members: frozenset[str] = frozenset()
        self.joined = -1
        #: who of them was online at the last look
        self.online: frozenset[str] | None = None


class User:
    """A user with streams."""

    __slots__ = ("looked", "streams")

    def __init__(self) -> None:
        self.streams: tuple[Stream, ...] = ()
        #: the size of the index and the value of the mailbox's newest key at the last look; None before
        self.looked: tuple[Any, Any] | None = None


class Registry:
    """Which streams follow what."""

    def __init__(self) -> None:
        self.chats: dict[str, Watched] = {}
        self.users: dict[str, User] = {}
        #: number of streams
        self.size = 0

    def streams_of(self, user: str) -> tuple[Stream, ...]:
        """The open streams of a user."""
        return self.users[user].streams if user in self.users else ()

    def add(self, stream: Stream) -> None:
        """Follow the user and the open chats of a stream."""
        self.users.setdefault(stream.user, User()).streams += (stream,)
        self.size += 1
        for chat_id in stream.rooms:
            self._watch(chat_id).rooms.add(stream)

    def remove(self, stream: Stream) -> None:
        """Forget a stream that was added."""
        for chat_id in (*stream.rooms, *stream.chat_ids):
            self._unwatch(stream, chat_id)
        user = self.users[stream.user]
        user.streams = tuple(one for one in user.streams if one is not stream)
        self.size -= 1
        if not user.streams:
            del self.users[stream.user]

    def list_chats(self, stream: Stream, newest: Mapping[str, bytes | None]) -> list[str]:
        """Replace the list of chats of a stream; returns those that are gone. `newest`: the values of the
        chats' newest keys."""
        gone = [chat_id for chat_id in stream.chat_ids if chat_id not in newest]
        for chat_id in gone:
            self._leave_list(stream, chat_id)
        listed = []
        for chat_id, value in newest.items():
            watched = self._watch(chat_id)
            if watched.newest == "":
                watched.newest = value
            watched.lists.add(stream)
            listed.append(watched.chat_id)  # the same object for all streams
        stream.chat_ids = tuple(listed)
        return gone

    def unlist(self, stream: Stream, chat_id: str) -> None:
        """Remove a chat from the list of a stream."""
        stream.chat_ids = tuple(one for one in stream.chat_ids if one != chat_id)
        self._leave_list(stream, chat_id)

    def _leave_list(self, stream: Stream, chat_id: str) -> None:
        if chat_id in stream.rooms:
            self.chats[chat_id].lists.discard(stream)
        else:
            self._unwatch(stream, chat_id)

    def close_room(self, stream: Stream, chat_id: str) -> None:
        """Close a chat that is open in a stream."""
        stream.close_room(chat_id)
        if chat_id in stream.chat_ids:
            self.chats[chat_id].rooms.discard(stream)
        else:
            self._unwatch(stream, chat_id)

    def _watch(self, chat_id: str) -> Watched:
        found = self.chats.get(chat_id)
        if found is None:
            found = self.chats[chat_id] = Watched(chat_id)
        return found

    def _unwatch(self, stream: Stream, chat_id: str) -> None:
        watched = self.chats.get(chat_id)
        if watched is not None:
            watched.rooms.discard(stream)
            watched.lists.discard(stream)
            if not watched.rooms and not watched.lists:
                del self.chats[chat_id]


#: chats of the list that a stream begins with
LIST_LENGTH = 50


class Reading:
    """Reads chats, indexes and mailboxes, and hands them to the streams.

    The membership of the streams' users is read together with the messages, in one script, so that nothing
    is sent to those who have left.
    """

    def __init__(self, alias: str, registry: Registry) -> None:
        self.marks = Marks(self._read)
        self._alias = alias
        self._registry = registry
        #: chats that have changed while an index was read, with what has; and the number of such readings
        self._changed_meanwhile: set[tuple[str, str]] = set()
        self._indexing = 0

    def note(self, chat_id: str, what: str) -> None:
        """A chat has changed: mark it if a stream follows it, or may be about to."""
        if self._indexing:
            self._changed_meanwhile.add((chat_id, what))
        if chat_id in self._registry.chats:
            self.marks.chat(chat_id, what)

    async def _read(self, resource: Resource, what: set[str]) -> None:
        kind, name = resource
        if kind == "index":
            await self._read_index(name, whole=WHOLE in what)
        elif kind == "mailbox":
            await self._read_mailbox(name)
        elif name in self._registry.chats:
            await self._read_chat(self._registry.chats[name], what)

    async def _read_chat(self, watched: Watched, what: set[str]) -> None:
        """Read a chat for the streams that see what has changed."""
        rooms, lists = list(watched.rooms), list(watched.lists)
        if EVERYTHING not in what:
            moved = {one[len(POSITION) :] for one in what if one.startswith(POSITION)}
            lists = [stream for stream in lists if stream.user in moved]
            # The members of a large chat don't see each other's positions, and nobody those that are hidden.
            is_small = watched.size <= conf.current().TYPING_MAX_MEMBERS
            if TYPING not in what and not (is_small and moved & watched.shown):
                rooms = [one for one in rooms if one.user in moved or one.is_behind(watched.chat_id)]
        await self._read_rooms(watched, rooms)
        await self._read_summaries(watched, lists)

    async def _read_rooms(self, watched: Watched, streams: Iterable[Stream]) -> None:
        """Read what changed in an open chat, once for all streams that know the same."""
        groups: defaultdict[Known, list[Stream]] = defaultdict(list)
        for stream in streams:
            known = stream.known(watched.chat_id)
            if known is not None:
                groups[known].append(stream)
        for known, group in groups.items():
            for page in batched(group, MAX_READERS):
                await self._read_group(watched, known, page)

    async def _read_group(self, watched: Watched, known: Known, group: Collection[Stream]) -> None:
        chat, users = Chat(watched.chat_id, using=self._alias), list({stream.user for stream in group})
        found: dict[str, Changes] = {}
        with suppress(ChatNotFound):  # then they are no members
            # The names of those whose positions others see come with the positions.
            moved = known.moved if known.moved == watched.moved else None
            found = await chat.achanges_for(users, **known._replace(moved=moved)._asdict())
        # Those who see less than the others were read alone.
        shared: defaultdict[int, dict[Any, Any]] = defaultdict(dict)
        for stream in group:
            if chat.id not in stream.rooms:
                continue
            if stream.user in found:
                changes = found[stream.user]
                stream.put_changes(changes, shared[id(changes.messages)])
            else:
                self._registry.close_room(stream, chat.id)
        for changes in found.values():
            if changes.members:
                watched.shown, watched.moved = frozenset(changes.positions), changes.moved
            await self._read_members(chat, watched, changes)
            if changes.typists:  # nothing is published when they stop
                self.marks.later(conf.current().TYPING_WINDOW, Resource("chat", chat.id), TYPING)
            break
        if watched.online is not None:
            for stream in watched.rooms & set(group):
                stream.put_online(chat.id, watched.online)

    async def _read_members(self, chat: Chat, watched: Watched, changes: Changes) -> None:
        """Read the members of a chat that shows who is online, if they may have changed."""
        watched.size = changes.member_count
        limit = conf.current().PRESENCE_MAX_MEMBERS
        if watched.size > limit:
            if watched.online:  # it has grown: nobody is shown any more
                for stream in watched.rooms:
                    stream.put_online(chat.id, frozenset())
            watched.members, watched.online, watched.joined = frozenset(), None, -1
        elif watched.joined != changes.event:
            with suppress(ChatNotFound):  # deleted since
                watched.members = frozenset(member.user for member in await chat.amembers(limit=limit))
                watched.joined = changes.event

    async def _read_summaries(self, watched: Watched, streams: Collection[Stream]) -> None:
        """Read what the lists of chats show of a chat."""
        chat, users = Chat(watched.chat_id, using=self._alias), {stream.user for stream in streams}
        found: dict[str, ChatSummary] = {}
        for page in batched(users, MAX_READERS):
            found |= await chat.asummaries_for(page)
        shared: dict[Any, Any] = {}
        for stream in streams:
            if stream not in watched.lists:
                continue
            if stream.user in found:
                stream.put_summary(found[stream.user], shared)
            else:
                stream.remove_chats([chat.id])
                self._registry.unlist(stream, chat.id)

    async def _read_index(self, user: str, *, whole: bool) -> None:
        """Read the list of a user's chats, and follow all of them; `whole`: also hand over those that the
        streams have in their lists already."""
        inbox = Inbox(user, using=self._alias)
        self._indexing += 1
        try:
            chats = await inbox.achats(limit=LIST_LENGTH)
            newest = inbox.newest
            for stream in self._registry.streams_of(user):
                listed = set(stream.chat_ids)
                gone = self._registry.list_chats(stream, newest)
                if whole or not listed:
                    stream.put_list(chats)
                else:
                    for chat in reversed(chats):
                        if chat.chat_id not in listed:
                            stream.put_summary(chat, {})
                stream.remove_chats(gone)
            for chat_id, what in list(self._changed_meanwhile):
                if chat_id in newest:
                    self.note(chat_id, what)
        finally:
            self._indexing -= 1
            if not self._indexing:
                self._changed_meanwhile.clear()

    async def _read_mailbox(self, user: str) -> None:
        status = await Mailbox(user, using=self._alias).astatus()
        shared: dict[Any, Any] = {}
        for stream in self._registry.streams_of(user):
            stream.put_mail(status, shared)


#: seconds between two looks …
INTERVAL = 3.0
#: … or more: a look takes at most this share of the time
MAX_SHARE = 0.05


class Looking:
    """Compares everything that streams follow with the last look, and marks what has changed."""

    def __init__(self, alias: str, prefix: str, registry: Registry, marks: Marks, presence: Presence) -> None:
        self._alias = alias
        self._prefix = prefix
        self._registry = registry
        self._marks = marks
        self._presence = presence
        self._soon = asyncio.Event()
        #: whether hints were lost since the last look
        self._lost = False

    def hints_lost(self) -> None:
        """Look at once, and have everything read again: no look notices that a position has moved."""
        self._lost = True
        self._soon.set()

    async def run(self) -> None:
        """Look until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self._look()
            except MessagingError as error:
                logger.warning("Looking for changes failed, retrying: %s", error)
            pause = max(INTERVAL, (loop.time() - began) / MAX_SHARE)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._soon.wait()
            self._soon.clear()

    async def _look(self) -> None:
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
        await self._look_who_is_online()

    async def _look_who_is_online(self) -> None:
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
            self._marks.chat(chat_id)
        for user in users:
            self._marks.user(user)

    def _compare_newest(self, chat_id: str, value: bytes | None) -> None:
        watched = self._registry.chats.get(chat_id)
        if watched is not None and watched.newest != value:
            watched.newest = value
            self._marks.chat(chat_id)

    def _compare_numbers(self, chat_id: str, values: list[bytes | None]) -> None:
        watched = self._registry.chats.get(chat_id)
        if watched is not None and watched.numbers != values:
            is_first, watched.numbers = watched.numbers == "", values
            self._marks.chat(chat_id, TYPING if is_first else EVERYTHING)

    def _compare_user(self, name: str, looked: tuple[Any, Any]) -> None:
        user = self._registry.users.get(name)
        if user is not None and user.looked != looked:
            if user.looked is not None:
                self._marks.user(name)
            user.looked = looked


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


def _read_suspended(prefix: str, rooms: Sequence[Watched]) -> Steps[set[str]]:
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


#: seconds for which the hub keeps its connection after the last stream has ended
LINGER = 5.0


class Hub:
    """The live streams of one event loop, for one alias and prefix."""

    def __init__(self, alias: str) -> None:
        prefix = keys.current_prefix()
        self._registry = Registry()
        self._reading = Reading(alias, self._registry)
        self._marks = self._reading.marks
        self._presence = Presence(using=alias)
        self._looking = Looking(alias, prefix, self._registry, self._marks, self._presence)
        endpoint = clients.running(alias).endpoint
        self._hints = Hints(endpoint, prefix, self.receive, self._looking.hints_lost)
        #: token of each stream that counts as one of its user → the user
        self._tokens: dict[str, str] = {}
        self._loops: list[asyncio.Task[None]] = []
        self._ending: asyncio.TimerHandle | None = None

    @property
    def number_of_streams(self) -> int:
        """How many streams are open."""
        return self._registry.size

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
        stream = Stream(self._marks, user, rooms, token)
        self._begin()
        self._registry.add(stream)
        if token:
            self._tokens[token] = user
        try:
            await self._hints.attempted.wait()
            for chat_id in rooms:
                self._marks.chat(chat_id, BEHIND)
            self._marks.user(user)
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
            self._marks.start(self._leave(stream.user, stream.token))
        if not self._registry.users:
            self._ending = asyncio.get_running_loop().call_later(LINGER, self.close)

    def end_streams(self) -> None:
        """Ask all readers to end their streams."""
        for user in self._registry.users.values():
            for stream in user.streams:
                stream.end()

    def receive(self, hint: Hint) -> None:
        """Mark what has changed."""
        kind, name, user = hint
        if kind == "x":
            for stream in self._registry.streams_of(name):
                stream.request_check()
        elif kind not in "ub":
            self._reading.note(name, POSITION + user if kind == POSITION else kind)
        elif name in self._registry.users:
            if kind == "u":
                self._marks.add(Resource("index", name), JOINED)
            else:
                self._marks.add(Resource("mailbox", name), EVERYTHING)

    def close(self) -> None:
        """Close the connection, and stop reading."""
        for task in self._loops:
            task.cancel()
        self._loops.clear()
        self._marks.clear()

    def _begin(self) -> None:
        """Receive hints, and look, if that is not being done."""
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
        if not self._loops:
            self._hints.attempted.clear()
            renewing = renew_while_open(self._presence, self._tokens)
            self._loops = [*map(self._marks.start, (self._hints.run(), self._looking.run(), renewing))]

    async def _leave(self, user: str, token: str) -> None:
        try:
            await self._presence.aleave(user, token)
        except MessagingError as error:
            logger.warning("A stream of %r counts for some seconds after its end: %s", user, error)


_hubs: dict[tuple[str, str, int], tuple[asyncio.AbstractEventLoop, Hub]] = {}


def hub_of(using: str | None = None) -> Hub:
    """The hub of the running event loop for an alias and the current prefix."""
    loop, alias = asyncio.get_running_loop(), using if using is not None else conf.alias()
    key = (alias, keys.current_prefix(), id(loop))
    found = _hubs.get(key)
    if found is not None and found[0] is loop:
        return found[1]
    for other, (owner, _) in list(_hubs.items()):
        if owner.is_closed():
            del _hubs[other]
    hub = Hub(alias)
    _hubs[key] = (loop, hub)
    return hub


def open_hubs() -> list[tuple[asyncio.AbstractEventLoop, Hub]]:
    """The hubs of this process, with their event loops."""
    return [(loop, hub) for loop, hub in _hubs.values() if not loop.is_closed()]


#: chats that a stream follows with their messages
MAX_ROOMS = 10


async def events(
    user: str, *, rooms: Mapping[str, Known] | Iterable[str] = (), using: str | None = None
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
    name(user, "user")
    for chat_id in known:
        name(chat_id, "chat_id")
    if len(known) > MAX_ROOMS:
        raise InvalidArgument(f"rooms must have at most {MAX_ROOMS} items, not {len(known)}.")
    async with hub_of(using).stream(user, known) as stream:
        while True:
            for event in await stream.take():
                yield event
