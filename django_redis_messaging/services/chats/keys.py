"""The keys of chats, and the ids of direct chats."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable

from ...core.encoding import FORMAT, UNSAFE, encoded, tag

#: the beginning of the ids of direct chats
DIRECT = "direct:"


def digest(*parts: str) -> str:
    """A name made of names, which contain no NUL."""
    return hashlib.blake2b("\0".join(parts).encode(errors="surrogatepass"), digest_size=12).hexdigest()


def direct_id(user: str, other: str) -> str:
    """The id of the direct chat of two users, in either order."""
    return DIRECT + digest(*sorted((user, other)))


def is_direct(chat_id: str) -> bool:
    """Whether a chat is the direct chat of two users, and no group."""
    return chat_id.startswith(DIRECT)


class ChatKeys:
    """The keys of one chat, in one slot. The script that removes the last member deletes them.

    Scripts take them in one order, that of `all_keys`; most take the first ones only. They name them with
    chat_at() of _chat.lua.
    """

    def __init__(self, prefix: str, chat_id: str) -> None:
        self.tag = tag(prefix, "chat", chat_id)

    @property
    def newest(self) -> str:
        """STRING "last-ms-nonce-epoch-keep-total-expires": id, time and nonce of the newest entry, the chat's
        epoch (µs), how many entries are kept for scroll-back, the bytes ever appended, and 1 if the log
        expires, else 0. A chat exists while this key exists."""
        return self.tag + ":newest"

    @property
    def info(self) -> str:
        """HASH: title, open, created (ms), owners, joins (latest join number), edits (ever), event (number of
        the latest one), moved (changes with each ack of a member)."""
        return self.tag + ":info"

    @property
    def members(self) -> str:
        """ZSET member → id up to which the member has acked; half more while the membership is suspended: see
        _members.lua."""
        return self.tag + ":members"

    @property
    def roster(self) -> str:
        """HASH member → "first event, join id, joined at (ms), role, join number", space-separated. The
        member sees the messages after the join id, and the events from the number of the first one on. More
        stands before it for a member who has, or had, blocked the other one of a direct chat: see
        _members.lua."""
        return self.tag + ":roster"

    @property
    def standing(self) -> str:
        """ZSET member → join number, which only grows: the longest-standing member first."""
        return self.tag + ":standing"

    @property
    def own(self) -> str:
        """ZSET member + NUL + id (16 digits), with equal scores: the messages that members have sent while
        they were behind. Removed once the member has acked them."""
        return self.tag + ":own"

    @property
    def log(self) -> str:
        """LIST of entries, oldest first; their format is in _log.lua. Expires with its newest entry if
        CHAT_MAX_AGE is set."""
        return self.tag + ":log"

    @property
    def typing(self) -> str:
        """ZSET member → ms until which the member counts as typing. Expires with its newest member."""
        return self.tag + ":typing"

    @property
    def mutes(self) -> str:
        """HASH member → ms until which the member muted the chat."""
        return self.tag + ":mutes"

    @property
    def removed(self) -> str:
        """ZSET user → ms at which an owner removed them: only owners can add them again. The newest 1000; a
        user who becomes a member is removed from it."""
        return self.tag + ":removed"

    @property
    def opted_out(self) -> str:
        """ZSET user → ms at which they left and asked not to be added again. The newest 1000; a user who
        becomes a member is removed from it."""
        return self.tag + ":opted-out"

    @property
    def hidden(self) -> str:
        """SET of the members who hide from others what they have read: see Choices."""
        return self.tag + ":hidden"

    @property
    def edits(self) -> str:
        """ZSET message id → number of its latest edit: the 100 messages edited or deleted last; "dropped" →
        the highest number that is no longer listed."""
        return self.tag + ":edits"

    @property
    def events(self) -> str:
        """LIST of the newest 100 events, 32 KiB at most, oldest first: what happened to the members and the
        title, as JSON arrays; their format is in _info.lua."""
        return self.tag + ":events"

    @property
    def requests(self) -> list[str]:
        """HASH request id → first answer: two keys, used by turns, for one window each. Each expires before
        its next turn."""
        return [self.tag + ":requests:0", self.tag + ":requests:1"]

    @functools.cached_property
    def reading(self) -> tuple[str, ...]:
        """The first keys, for what a member has not read."""
        return (self.newest, self.members, self.own, self.log)

    @functools.cached_property
    def acking(self) -> tuple[str, ...]:
        """Those, and what else an ack concerns."""
        return (*self.reading, self.info, self.hidden)

    @functools.cached_property
    def paging(self) -> tuple[str, ...]:
        """The first keys, for reading messages as a member."""
        return (*self.reading, self.roster)

    @functools.cached_property
    def listing(self) -> tuple[str, ...]:
        """The first keys, for describing the chat to a member."""
        return (*self.paging, self.info, self.standing, self.mutes)

    @functools.cached_property
    def following(self) -> tuple[str, ...]:
        """The first keys, for what members see of each other."""
        return (*self.listing, self.hidden, self.typing, self.edits, self.events)

    @functools.cached_property
    def all_keys(self) -> tuple[str, ...]:
        """All keys of the chat, the requests last: they outlive it."""
        return (*self.following, self.removed, self.opted_out, *self.requests)

    @functools.cached_property
    def sending(self) -> tuple[str, ...]:
        """The keys of send.lua, which has an order of its own."""
        return (*self.reading, *self.requests, self.typing)


def newest_keys(prefix: str, chat_ids: Iterable[bytes]) -> list[str]:
    """`ChatKeys.newest` of many chats. Every read of an inbox calls this, so it is optimized."""
    names = [chat_id.decode() for chat_id in chat_ids]
    if UNSAFE.search("".join(names)):
        names = [encoded(chat_id) for chat_id in names]
    head = f"{prefix}:{FORMAT}:{{chat:"
    return [f"{head}{chat_id}}}:newest" for chat_id in names]
