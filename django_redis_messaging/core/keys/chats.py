"""The keys of chats."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from .names import FORMAT, UNSAFE, encoded, tag


class ChatKeys:
    """The keys of one chat, in one slot. Deleted by the script that removes the last member."""

    def __init__(self, prefix: str, chat_id: str) -> None:
        self.tag = tag(prefix, "chat", chat_id)

    @property
    def newest(self) -> str:
        """STRING "last-ms-epoch-keep": id and time of the newest entry, the chat's epoch (µs), and how
        many entries stay for scroll-back. A chat is there while this is."""
        return self.tag + ":newest"

    @property
    def info(self) -> str:
        """HASH: title, open, created (ms), owners, joins (ever), edits (ever)."""
        return self.tag + ":info"

    @property
    def members(self) -> str:
        """ZSET member → id up to which the member has acked."""
        return self.tag + ":members"

    @property
    def roster(self) -> str:
        """HASH member → "join id, joined at (ms), role, token", space-separated."""
        return self.tag + ":roster"

    @property
    def standing(self) -> str:
        """ZSET member → order of joining: the longest-standing member first."""
        return self.tag + ":standing"

    @property
    def counts(self) -> str:
        """HASH s + member → messages sent since the member fell behind, a + member → how many of them up to
        its position. Gone once it has acked all."""
        return self.tag + ":counts"

    @property
    def log(self) -> str:
        """LIST of entries, oldest first; their form is in lua/_log.lua."""
        return self.tag + ":log"

    @property
    def typing(self) -> str:
        """ZSET member → ms until which it counts as typing. Expires with its newest member."""
        return self.tag + ":typing"

    @property
    def mutes(self) -> str:
        """HASH member → ms until which the member muted the chat."""
        return self.tag + ":mutes"

    @property
    def requests(self) -> list[str]:
        """Two HASHes request id → first answer, used in turn, a window each; each expires when its turn
        comes again."""
        return [self.tag + ":requests:0", self.tag + ":requests:1"]

    @functools.cached_property
    def talk(self) -> list[str]:
        """What sending, acking and reading take, in the order of the scripts."""
        return [self.newest, self.members, self.counts, self.log, *self.requests]

    @property
    def correcting(self) -> list[str]:
        """What editing and deleting a message take, in the order of the scripts."""
        return [self.newest, self.roster, self.log, self.info]

    @property
    def creating(self) -> list[str]:
        """What creating takes, in the order of the scripts."""
        return [*self.talk, self.roster, self.standing, self.info]

    @property
    def ending(self) -> list[str]:
        """What leaving and deleting take: what a chat consists of, and the requests, which outlive it."""
        return [
            *self.talk[:4],
            self.roster,
            self.standing,
            self.typing,
            self.mutes,
            self.info,
            *self.requests,
        ]


def newest_keys(prefix: str, chat_ids: Iterable[bytes]) -> list[str]:
    """`ChatKeys.newest` of many chats: made at every look into an inbox, so made fast."""
    names = [chat_id.decode() for chat_id in chat_ids]
    if UNSAFE.search("".join(names)):
        names = [encoded(one) for one in names]
    head = f"{prefix}:{FORMAT}:{{chat:"
    return [f"{head}{one}}}:newest" for one in names]
