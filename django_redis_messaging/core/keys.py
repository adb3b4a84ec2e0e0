"""Every key name, one builder each; the builder's docstring is the key's schema.

PREFIX:1:{chat:42}:log        prefix outside the braces: one ACL pattern covers all
       |  |                   1: the data format
       |  what one resource owns shares a slot
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

FORMAT = 1
#: bytes of UTF-8 that a name given by people may have
MAX_NAME_BYTES = 255

_UNSAFE = re.compile(r"[\s\x00-\x1f\x7f-\x9f{}%:]")
# braces would move the hash tag; the others mean something in the patterns of an ACL and of SCAN
_UNFIT_IN_PREFIX = re.compile(r"[\s\x00-\x1f\x7f-\x9f{}*?\[\]\\]")


@functools.lru_cache
def checked_prefix(value: str) -> str:
    """`value` if it can begin every key: a name without spaces, braces and the signs of patterns.

    >>> checked_prefix("site:shop-7")
    'site:shop-7'
    """
    unfit = _UNFIT_IN_PREFIX.search(name(value, "PREFIX"))
    if unfit:
        raise ValueError(f"PREFIX has {unfit[0]!r}: use letters, digits, '-', '_', '.' and ':'.")
    return value


def name(value: str, what: str) -> str:
    """`value` if it can name something: str, not empty, at most 255 bytes of UTF-8, no NUL.

    >>> name("ann", "user")
    'ann'
    """
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {type(value).__name__}.")
    if not value:
        raise ValueError(f"{what} is empty: give it a name.")
    if "\0" in value:
        raise ValueError(f"{what} has a NUL character: remove it.")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{what} has a lone surrogate, which UTF-8 can't carry: remove it.") from None
    if size > MAX_NAME_BYTES:
        raise ValueError(f"{what} has {size} bytes of UTF-8: {MAX_NAME_BYTES} is the most.")
    return value


def encoded(value: str) -> str:
    """A checked name as it stands inside a key.

    >>> encoded("a:{b} c")
    'a%3A%7Bb%7D%20c'
    """
    if not _UNSAFE.search(value):
        return value
    return _UNSAFE.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), value)


def tag(prefix: str, kind: str, value: str) -> str:
    """The part all keys of one resource begin with, which is also their hash tag."""
    return f"{prefix}:{FORMAT}:{{{kind}:{encoded(value)}}}"


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
    if _UNSAFE.search("".join(names)):
        names = [encoded(one) for one in names]
    head = f"{prefix}:{FORMAT}:{{chat:"
    return [f"{head}{one}}}:newest" for one in names]


class UserKeys:
    """The keys of one user, in one slot."""

    __slots__ = ("tag",)

    def __init__(self, prefix: str, user: str) -> None:
        self.tag = tag(prefix, "user", user)

    @property
    def chats(self) -> str:
        """HASH chat id → "token, written at (ms), seen": an index of the chats the user is a member of; the
        chats hold the truth. The token is that of the membership; "?" and that of a joining which is under
        way; "?" alone where several are. `seen` is the chat's newest when all of it was acked, or 0. An
        entry is removed by leave, or by healing when its chat doesn't know the user."""
        return self.tag + ":chats"

    @property
    def contacts(self) -> str:
        """ZSET contact → order of its latest use. Capped on write; deleted by forget()."""
        return self.tag + ":contacts"

    @property
    def contact_uses(self) -> str:
        """HASH contact → "count token": how often it was used, and by which call at last. Its fields are
        the members of `contacts`."""
        return self.tag + ":contact-uses"

    def rate(self, action: str) -> str:
        """STRING: ms of server time at which the user's allowance for an action is whole again. Expires
        at that time."""
        return f"{self.tag}:rate:{encoded(action)}"


class DirectoryKeys:
    """The keys of one directory, in one slot. Both are gone with the last member."""

    __slots__ = ("tag",)

    def __init__(self, prefix: str, guild: str) -> None:
        self.tag = tag(prefix, "directory", guild)

    @property
    def entries(self) -> str:
        """ZSET of "rest NUL id NUL label", all with score 0: each rest, from a word start on, of what a
        member is found under. Capped on write."""
        return self.tag + ":entries"

    @property
    def records(self) -> str:
        """HASH id → "label NUL rest NUL rest …": what a member's entries are made of, for their removal."""
        return self.tag + ":records"


def directories(prefix: str) -> str:
    """ZSET guild → ms of its latest add: the registry of directories, for forget(). A guild is pruned
    once its directory is found empty by a removal and nobody can be adding to it any more."""
    return f"{prefix}:{FORMAT}:{{directories}}"


class JobKeys:
    """The keys of the jobs of one slot: a delay queue's, or those of all queues of a backend of tasks."""

    def __init__(self, prefix: str, kind: str, value: str) -> None:
        self.tag = tag(prefix, kind, value)

    @property
    def jobs(self) -> str:
        """HASH job id → payload, opaque. A field goes with its job: acked, cancelled, purged, or its result
        forgotten."""
        return self.tag + ":jobs"

    @property
    def states(self) -> str:
        """HASH job id → state, as lua/_states.lua writes it. Goes with the payload."""
        return self.tag + ":states"

    @property
    def outcomes(self) -> str:
        """HASH job id → lines: what its attempts led to, opaque. Goes with the payload."""
        return self.tag + ":outcomes"

    @property
    def finished(self) -> str:
        """ZSET job id → ms until which its result is kept. Each that is added removes some that are over."""
        return self.tag + ":finished"

    @property
    def uniques(self) -> str:
        """HASH unique key → id of the job that has it. A field goes when its job has come to an end."""
        return self.tag + ":uniques"

    @property
    def aliases(self) -> str:
        """HASH a + id → id of the job that it stands for; j + job id → the ids that stand for it. Goes with
        the job."""
        return self.tag + ":aliases"

    @property
    def requests(self) -> list[str]:
        """Two HASHes request id → first answer, used in turn, a window each; each expires when its turn
        comes again."""
        return [self.tag + ":requests:0", self.tag + ":requests:1"]

    @property
    def workers(self) -> str:
        """HASH worker id → "beat consumed started running done" (moments in ms). A worker removes its own,
        each beat those that are silent."""
        return self.tag + ":workers"

    @property
    def records(self) -> list[str]:
        """What a job consists of, in the order of the scripts."""
        return [self.jobs, self.states, self.outcomes, self.finished, self.uniques, self.aliases]

    def queue(self, value: str) -> QueueKeys:
        """The keys of one of its queues."""
        return QueueKeys(self.tag, value)


class QueueKeys:
    """Where the jobs of one queue are. Each key is gone with its last member."""

    __slots__ = ("tag",)

    def __init__(self, slot: str, value: str) -> None:
        self.tag = f"{slot}:queue:{encoded(value)}"

    @property
    def ready(self) -> str:
        """ZSET job id → place in the line: (100 - priority) * 2^45 + order. Capped on push."""
        return self.tag + ":ready"

    @property
    def delayed(self) -> str:
        """ZSET job id → ms at which it is due. Capped on push, together with `ready`."""
        return self.tag + ":delayed"

    @property
    def leased(self) -> str:
        """ZSET job id → ms at which its lease ends. What is over goes back at the next claim of anybody."""
        return self.tag + ":leased"

    @property
    def dead(self) -> str:
        """ZSET job id → ms at which it was buried. Capped and aged on burial."""
        return self.tag + ":dead"

    @property
    def bell(self) -> str:
        """ZSET of at most one marker: there is something to look at. Whoever waits pops it."""
        return self.tag + ":bell"

    @property
    def all(self) -> list[str]:
        """In the order of the scripts."""
        return [self.ready, self.delayed, self.leased, self.dead, self.bell]


def queues(prefix: str) -> str:
    """ZSET name → ms of an early push or sweep: the delay queues there are. Pruned by age when read."""
    return f"{prefix}:{FORMAT}:{{queues}}"
