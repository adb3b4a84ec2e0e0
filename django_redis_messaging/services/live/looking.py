"""Looks every few seconds for changes whose hints were lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ...core.operations import Command, Gather, Steps, aperform
from ...core.steps import batched
from ...errors import MessagingError
from ..chats.direct import HALF, is_direct
from ..chats.keys import ChatKeys, newest_keys
from ..mailboxes.keys import MailboxKeys
from ..users import UserKeys
from .marks import EVERYTHING, TYPING, Marks
from .presence import Presence
from .registry import Registry, Watched

logger = logging.getLogger(__name__)

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
