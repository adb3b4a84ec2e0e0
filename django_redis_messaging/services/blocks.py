"""Whom a user has blocked."""

from __future__ import annotations

from collections.abc import Sequence

from .. import conf
from ..core.keys import name
from ..core.operations import Command, Script, Service, Steps, asynchronous, operation
from ..core.steps import batched
from ..errors import InvalidArgument, LimitExceeded
from .arguments import settled
from .chats.direct import apply_block, read_block
from .users import UserKeys

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

    def __init__(self, user: str, *, using: str | None = None) -> None:
        super().__init__(using=using)
        self.user = name(user, "user")
        self._key = UserKeys(self._prefix, user).blocks

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.user!r})"

    @operation
    def block(self, other: str) -> Steps[bool | None]:
        """Block a person; False if they are blocked already.

        Takes three round trips: the list, the direct chat of the two, the list again. If it fails in
        between, repeat it: the list alone doesn't stop the direct chat.

        None if a reply was lost and the retry found them blocked: this call may have done it.
        Raises LimitExceeded (USER_MAX_BLOCKS).
        """
        if name(other, "other") == self.user:
            raise InvalidArgument("other must be another user: nobody can block themselves.")
        limit = conf.current().USER_MAX_BLOCKS
        reply = yield Script("blocks_add", [self._key], (other, limit), settles=True)
        if reply == b"full":
            raise LimitExceeded("blocked people", limit=limit, actual=limit + 1, setting="USER_MAX_BLOCKS")
        yield from apply_block(self._prefix, self.user, other, is_blocked=True)
        return settled(reply)

    ablock = asynchronous(block)

    @operation
    def unblock(self, other: str) -> Steps[bool | None]:
        """Unblock a person; False if they are not blocked.

        The user sees the messages of their direct chat that are sent from now on. Takes three round trips, as
        `block`; if it fails in between, repeat it.

        None if a reply was lost and the retry found them not blocked: this call may have done it.
        """
        arguments = (name(other, "other"),)
        reply = yield Script("blocks_remove", [self._key], arguments, settles=True)
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
