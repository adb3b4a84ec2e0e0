"""The open streams of a hub, and the chats and users that they follow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .stream import Stream


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
