"""Whom a user has blocked, and what the user has chosen: what others see, and whether digests are mailed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ... import conf
from ...core.commands import Argument, batched
from ...core.operations import Command, Script, Service, Steps, asynchronous, operation
from ...errors import InvalidArgument, LimitExceeded
from ..chats.joining import apply_block, hiding_step, read_block
from ..chats.keys import ChatKeys
from ..common.arguments import UserOrId, flag, member_id, settled
from .keys import UserKeys

#: the built-in, because `list` is a method below
_Names = list[str]


class Blocks(Service):
    """The people whom a user has blocked: they can neither create a chat with the user nor add them to one.

    The user's membership in their direct chat is suspended: to the user, the chat and its messages are gone,
    and the blocked person notices nothing, not even when sending to it. Chats with others in which both are
    members stay as they are, and both can join the same open chat.

    >>> blocks = Blocks("blocks-example")
    >>> blocks.block("mallory")
    True
    >>> blocks.list()
    ['mallory']
    >>> Chat.create("mallory", ["blocks-example"])
    Traceback (most recent call last):
    ...
    django_redis_messaging.errors.NotPermitted: One of these people can't be added.
    >>> blocks.unblock("mallory")
    True
    """

    def __init__(self, user: UserOrId, *, using: str | None = None) -> None:
        super().__init__(using=using)
        self.user = member_id(user, "user")
        self._key = UserKeys(self._prefix, self.user).blocks

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.user!r})"

    @operation
    def block(self, other: UserOrId) -> Steps[bool | None]:
        """Block a person; False if they are blocked already.

        Takes three round trips: the list, the direct chat of the two, the list again. If it fails in
        between, repeat it: the list alone doesn't stop the direct chat.

        None if a reply was lost and the retry found them blocked: this call may have done it.
        Raises LimitExceeded (USER_MAX_BLOCKS).
        """
        other = member_id(other, "other")
        if other == self.user:
            raise InvalidArgument("other must be another user: nobody can block themselves.")
        limit = conf.current().USER_MAX_BLOCKS
        reply = yield Script("users/blocks_add", [self._key], (other, limit), settles=True)
        if reply == b"full":
            raise LimitExceeded("blocked people", limit=limit, actual=limit + 1, setting="USER_MAX_BLOCKS")
        yield from apply_block(self._prefix, self.user, other, is_blocked=True)
        return settled(reply)

    ablock = asynchronous(block)

    @operation
    def unblock(self, other: UserOrId) -> Steps[bool | None]:
        """Unblock a person; False if they are not blocked.

        The user sees the messages of their direct chat that are sent from now on. Takes three round trips, as
        `block`; if it fails in between, repeat it.

        None if a reply was lost and the retry found them not blocked: this call may have done it.
        """
        other = member_id(other, "other")
        reply = yield Command("ZREM", self._key, other, settles=True)
        if other != self.user:
            yield from apply_block(self._prefix, self.user, other, is_blocked=False)
        return settled(reply)

    aunblock = asynchronous(unblock)

    @operation
    def list(self) -> Steps[_Names]:
        """List the blocked people, the latest first: at most USER_MAX_BLOCKS."""
        blocked = yield Command("ZRANGE", self._key, 0, -1, "REV", reads=True)
        return [other.decode() for other in blocked]

    alist = asynchronous(list)


def find_blocking(prefix: str, users: Sequence[str], other: str) -> Steps[set[str]]:
    """Those of the users who have blocked a person. One round trip for each 500."""
    found: set[str] = set()
    for page in batched(users):
        replies = yield [read_block(prefix, user, other) for user in page]
        found |= {user for user, reply in zip(page, replies, strict=True) if reply is not None}
    return found


def forget_blocks(prefix: str, user: str) -> Steps[None]:
    """Delete whom a user has blocked, and which direct chats they have declined."""
    yield Command("UNLINK", UserKeys(prefix, user).blocks, UserKeys(prefix, user).declined)


class Choice(NamedTuple):
    """What a user has chosen."""

    online: bool = True
    """Whether others see that the user is online."""
    receipts: bool = True
    """Whether others see what the user has read."""
    digests: bool = True
    """Whether unread messages are mailed to the user, if the site does that."""


class Choices(Service):
    """What users let others see, and whether they want digests: all of it, unless they have chosen otherwise.

    >>> choices = Choices()
    >>> choices.choose("ann", receipts=False)
    Choice(online=True, receipts=False, digests=True)
    >>> choices.get("ann")
    Choice(online=True, receipts=False, digests=True)
    """

    @operation
    def get(self, user: UserOrId) -> Steps[Choice]:
        """Read the choices of a user."""
        key = self._keys(member_id(user, "user")).choices
        return _Stored(*(yield Command("HMGET", key, *_Stored._fields, reads=True))).choice

    aget = asynchronous(get)

    @operation
    def choose(
        self,
        user: UserOrId,
        *,
        online: bool | None = None,
        receipts: bool | None = None,
        digests: bool | None = None,
    ) -> Steps[Choice]:
        """Change the choices that are given; returns all. They hold when the call returns, in all processes
        and chats; only what the user was typing just before is still shown until `TYPING_WINDOW` has passed.

        Takes one round trip; if `receipts` changes, two more, and one for each 500 chats of the user. If that
        is interrupted, the choice is stored in some chats and not in others, and `get` returns `receipts` as
        True: repeat the call.
        """
        user = member_id(user, "user")
        keys, given = self._keys(user), {"online": online, "receipts": receipts, "digests": digests}
        changed = [(what, flag(value, what)) for what, value in given.items() if value is not None]
        arguments = [part for pair in changed for part in pair]
        stored = yield from self._set(keys, arguments)
        # `receipts` is always applied: a repeat repairs a chat that a process was joining when it crashed.
        applied = stored.applied if receipts is None else b""
        while applied != stored.changes:  # or the user has chosen anew meanwhile
            yield from self._apply(user, keys, hides=stored.receipts == b"0")
            applied = stored.changes
            stored = yield from self._set(keys, ["applied", applied or 0])
        return stored.choice

    achoose = asynchronous(choose)

    def _set(self, keys: UserKeys, fields: Sequence[Argument]) -> Steps[_Stored]:
        return _Stored(*(yield Script("users/choices_set", [keys.choices, keys.online], fields)))

    def _apply(self, user: str, keys: UserKeys, *, hides: bool) -> Steps[None]:
        """Store in all chats of the user whether they hide what they have read. In a chat that the user is
        joining, the end of the joining stores it."""
        for page in batched((yield Command("HKEYS", keys.chats, reads=True))):
            chats = [ChatKeys(self._prefix, chat_id.decode()) for chat_id in page]
            yield [hiding_step(chat, user, hides=hides) for chat in chats]

    def _keys(self, user: str) -> UserKeys:
        return UserKeys(self._prefix, user)


def forget_choices(prefix: str, user: str) -> Steps[None]:
    """Delete what a user has chosen, and that they are online."""
    keys = UserKeys(prefix, user)
    yield Command("DEL", keys.choices, keys.streams, keys.online)


class _Stored(NamedTuple):
    """The fields of UserKeys.choices."""

    online: bytes | None
    receipts: bytes | None
    digests: bytes | None
    changes: bytes | None
    applied: bytes | None

    @property
    def is_interrupted(self) -> bool:
        """Whether some chats may not have stored whether the user hides what they have read."""
        return self.changes != self.applied

    @property
    def choice(self) -> Choice:
        shows_receipts = self.receipts != b"0" or self.is_interrupted
        return Choice(self.online != b"0", shows_receipts, self.digests != b"0")
