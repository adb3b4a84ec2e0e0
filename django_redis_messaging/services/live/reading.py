"""What the streams of a process follow, and how it is read: once for all of them.

What may have changed is marked: a chat, the index of a user's chats, or a mailbox. What is marked is read,
each by one task at a time, and handed to the streams that follow it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from ... import conf
from ...core.commands import batched
from ...core.operations import log_exception
from ...core.outcome import without_deadline
from ...errors import ChatNotFound, MessagingError
from ..chats.chat import MAX_READERS, Chat
from ..chats.inbox import Inbox
from ..chats.values import Changes, ChatSummary
from ..mailboxes.mailbox import Mailbox
from .hints import EVERYTHING, POSITION, TYPING
from .stream import Known, Stream

logger = logging.getLogger(__name__)

#: chats of the list that a stream begins with
LIST_LENGTH = 50
#: seconds between two readings of the same resource
READ_INTERVAL = 0.02
#: number of resources that are read at the same time
MAX_READS = 8
#: seconds after a failed reading
RETRY_PAUSE = 1.0

#: nothing has changed in a chat, but a stream is behind; else what has changed is the kind of a hint, for
#: POSITION followed by the member's name
BEHIND = "behind"
#: what has changed in the index of a user: they joined or left chats, or it must be read as a whole
JOINED, WHOLE = "joined", "whole"


class Registry:
    """Which streams follow what."""

    def __init__(self) -> None:
        self.chats: dict[str, WatchedChat] = {}
        self.users: dict[str, WatchedUser] = {}
        #: number of streams
        self.size = 0

    def streams_of(self, user: str) -> tuple[Stream, ...]:
        """The open streams of a user."""
        return self.users[user].streams if user in self.users else ()

    def add(self, stream: Stream) -> None:
        """Follow the user and the open chats of a stream."""
        self.users.setdefault(stream.user, WatchedUser()).streams += (stream,)
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

    def _watch(self, chat_id: str) -> WatchedChat:
        found = self.chats.get(chat_id)
        if found is None:
            found = self.chats[chat_id] = WatchedChat(chat_id)
        return found

    def _unwatch(self, stream: Stream, chat_id: str) -> None:
        watched = self.chats.get(chat_id)
        if watched is not None:
            watched.rooms.discard(stream)
            watched.lists.discard(stream)
            if not watched.rooms and not watched.lists:
                del self.chats[chat_id]


class WatchedChat:
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
        #: at the last poll, "" before: the value of the chat's newest key, its numbers of edits and events
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
        #: who of them was online at the last poll
        self.online: frozenset[str] | None = None


class WatchedUser:
    """A user with streams."""

    __slots__ = ("polled", "streams")

    def __init__(self) -> None:
        self.streams: tuple[Stream, ...] = ()
        #: the size of the index and the value of the mailbox's newest key at the last poll; None before
        self.polled: tuple[Any, Any] | None = None


class Resource(NamedTuple):
    """Something that can be read: the chat, the index, or the mailbox with this name."""

    kind: Literal["chat", "index", "mailbox"]
    name: str


class Reading:
    """Reads what is marked, and hands it to the streams. While it is read, a resource is only marked again: a
    busy chat is read as fast as it can be, and no faster.

    The membership of the streams' users is read together with the messages, in one script, so that nothing
    is sent to those who have left.
    """

    def __init__(self, alias: str, registry: Registry) -> None:
        self._alias = alias
        self._registry = registry
        #: resource → what has changed in it
        self._marked: defaultdict[Resource, set[str]] = defaultdict(set)
        #: resource → the task that reads it
        self._tasks: dict[Resource, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(MAX_READS)
        self._context = without_deadline()
        #: chats that have changed while an index was read, with what has; and the number of such readings
        self._changed_meanwhile: set[tuple[str, str]] = set()
        self._indexing = 0

    def chat_changed(self, chat_id: str, what: str) -> None:
        """Mark a chat if a stream follows it, or may be about to."""
        if self._indexing:
            self._changed_meanwhile.add((chat_id, what))
        if chat_id in self._registry.chats:
            self.mark_chat(chat_id, what)

    def mark_chat(self, chat_id: str, what: str = EVERYTHING) -> None:
        """Mark a chat."""
        self._mark(Resource("chat", chat_id), {what})

    def mark_behind(self, chat_id: str) -> None:
        """Mark a chat that has not changed, but of which a stream has not read everything."""
        self.mark_chat(chat_id, BEHIND)

    def mark_index(self, user: str, what: str) -> None:
        """Mark the index of a user's chats."""
        self._mark(Resource("index", user), {what})

    def mark_mailbox(self, user: str) -> None:
        """Mark the mailbox of a user."""
        self._mark(Resource("mailbox", user), {EVERYTHING})

    def mark_user(self, user: str) -> None:
        """Mark all that belongs to a user."""
        self.mark_index(user, WHOLE)
        self.mark_mailbox(user)

    def _mark(self, resource: Resource, what: set[str]) -> None:
        """Mark a resource, and begin to read it, unless that is being done."""
        self._marked[resource].update(what)
        if resource not in self._tasks:
            self._tasks[resource] = self.start(self._read_while_marked(resource))

    def _mark_later(self, seconds: float, resource: Resource, what: set[str]) -> None:
        asyncio.get_running_loop().call_later(seconds, self._mark, resource, what)

    def start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task in the context of the hub: it outlives the request that needs it first."""
        return asyncio.get_running_loop().create_task(coroutine, context=self._context.copy())

    def close(self) -> None:
        """Stop reading."""
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()  # a task that is cancelled before it has begun would not remove itself
        self._marked.clear()

    async def _read_while_marked(self, resource: Resource) -> None:
        try:
            while resource in self._marked:
                async with self._slots:
                    await self._attempt(resource, self._marked.pop(resource))
                await asyncio.sleep(READ_INTERVAL)
        finally:
            if self._tasks.get(resource) is asyncio.current_task():
                del self._tasks[resource]

    async def _attempt(self, resource: Resource, what: set[str]) -> None:
        try:
            await self._read(resource, what)
        except MessagingError as error:
            logger.warning("Reading %s %r for live streams failed, retrying: %s", *resource, error)
            self._mark_later(RETRY_PAUSE, resource, what)
        except Exception as error:  # the other resources must be read
            log_exception(logger, error, "Reading %s %r for live streams failed.", *resource)

    async def _read(self, resource: Resource, what: set[str]) -> None:
        kind, name = resource
        if kind == "index":
            await self._read_index(name, whole=WHOLE in what)
        elif kind == "mailbox":
            await self._read_mailbox(name)
        elif name in self._registry.chats:
            await self._read_chat(self._registry.chats[name], what)

    async def _read_chat(self, watched: WatchedChat, what: set[str]) -> None:
        """Read a chat for the streams that see what has changed."""
        rooms, lists = list(watched.rooms), list(watched.lists)
        if EVERYTHING not in what:
            readers = {one[len(POSITION) :] for one in what if one.startswith(POSITION)}
            lists = [stream for stream in lists if stream.user in readers]
            # The members of a large chat don't see each other's positions, and nobody those that are hidden.
            is_small = watched.size <= conf.current().TYPING_MAX_MEMBERS
            if TYPING not in what and not (is_small and readers & watched.shown):
                rooms = [one for one in rooms if one.user in readers or one.is_behind(watched.chat_id)]
        await self._read_rooms(watched, rooms)
        await self._read_summaries(watched, lists)

    async def _read_rooms(self, watched: WatchedChat, streams: Iterable[Stream]) -> None:
        """Read what changed in an open chat, once for all streams that know the same."""
        groups: defaultdict[Known, list[Stream]] = defaultdict(list)
        for stream in streams:
            known = stream.known(watched.chat_id)
            if known is not None:
                groups[known].append(stream)
        for known, group in groups.items():
            for page in batched(group, MAX_READERS):
                await self._read_group(watched, known, page)

    async def _read_group(self, watched: WatchedChat, known: Known, group: Collection[Stream]) -> None:
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
                window = conf.current().TYPING_WINDOW
                self._mark_later(window, Resource("chat", chat.id), {TYPING})
            break
        if watched.online is not None:
            for stream in watched.rooms & set(group):
                stream.put_online(chat.id, watched.online)

    async def _read_members(self, chat: Chat, watched: WatchedChat, changes: Changes) -> None:
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

    async def _read_summaries(self, watched: WatchedChat, streams: Collection[Stream]) -> None:
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
                    self.chat_changed(chat_id, what)
        finally:
            self._indexing -= 1
            if not self._indexing:
                self._changed_meanwhile.clear()

    async def _read_mailbox(self, user: str) -> None:
        status = await Mailbox(user, using=self._alias).astatus()
        shared: dict[Any, Any] = {}
        for stream in self._registry.streams_of(user):
            stream.put_mail(status, shared)
