"""Reads each change once for all streams that follow it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any

from ... import conf
from ...core.steps import batched
from ...errors import ChatNotFound
from ..chats.changes import MAX_READERS
from ..chats.chat import Chat
from ..chats.values import Changes, ChatSummary
from ..inboxes import Inbox
from ..mailboxes.mailbox import Mailbox
from .marks import EVERYTHING, POSITION, TYPING, WHOLE, Marks, Resource
from .registry import Registry, Watched
from .stream import Stream
from .values import Known

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
