"""The public class, and how a chat is created."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from ... import conf
from ...core import payloads
from ...core.keys import name
from ...core.operations import Command, Script, Steps, asynchronous, operation
from ...errors import ChatExists, ChatNotFound, InvalidArgument, LimitExceeded, NotAMember
from ..arguments import flag, request, window
from . import entries
from .base import best_effort, limits
from .direct import DIRECT, SUSPENDED, apply_block, digest, direct_id, read_block
from .joining import joining_users, refuse_blocked, refuse_to_blocker
from .membership import Membership
from .messages import Messages

#: messages: Lua would write larger numbers with an exponent
_MAX_KEEP_LAST = 10**9
#: attempts to open a direct chat: each finds the chat changed by another call
_DIRECT_ATTEMPTS = 5


class Chat(Messages, Membership):
    """A group chat, named by its id. Creating the object does no I/O, and the chat need not exist.

    *Every member receives every message sent while they are a member, in one order per chat, with ids 1, 2,
    3 … without holes, at least once until acked. If a limit removed messages, the reader gets the size of
    the gap; if Redis lost data, the reader gets `reset`.*

    >>> chat = Chat.create("ann", ["bob", "cat"], "Hello!", title="Trip")
    >>> chat.send("bob", "Hi ann").id
    2
    """

    @classmethod
    def create(
        cls,
        sender: str,
        recipients: Iterable[str],
        body: str = "",
        *,
        chat_id: str | None = None,
        title: str = "",
        open: bool = False,
        keep_last: int | None = None,
        request_id: str | None = None,
        using: str | None = None,
    ) -> Self:
        """Create a chat of the sender (its owner) and the recipients, with `body` as first message if given.

        Anyone can join an `open` chat without being added. `keep_last` is the number of messages kept for
        scroll-back after all members have acked them (default CHAT_KEEP_LAST; 0: none).
        Takes three round trips: the members' indexes of chats, the chat, the indexes again.

        Others can fill at most nine tenths of a user's USER_MAX_CHATS.

        Raises ChatExists (but a repeat with the same `request_id` by the same sender gets the first answer),
        LimitExceeded (CHAT_MAX_MEMBERS, MESSAGE_MAX_BYTES, USER_MAX_CHATS), NotPermitted if one of the
        recipients has blocked the sender.
        """
        request_id = request(request_id)
        chat = cls(_chat_id(chat_id, sender, request_id), using=using)
        chat._create(sender, recipients, body, title, open, keep_last, request_id)
        return chat

    @classmethod
    async def acreate(
        cls,
        sender: str,
        recipients: Iterable[str],
        body: str = "",
        *,
        chat_id: str | None = None,
        title: str = "",
        open: bool = False,
        keep_last: int | None = None,
        request_id: str | None = None,
        using: str | None = None,
    ) -> Self:
        """Async version of `create`."""
        request_id = request(request_id)
        chat = cls(_chat_id(chat_id, sender, request_id), using=using)
        await chat._acreate(sender, recipients, body, title, open, keep_last, request_id)
        return chat

    @classmethod
    def direct(cls, user: str, other: str, *, using: str | None = None) -> Self:
        """Return the one chat of two users, and open it if needed. Its id is the same whoever begins.

        `user` is who asks, and owns the chat if it is created. If one of the two has left it, they become a
        member again. Nobody else can be added. Takes one round trip if both are members.

        >>> Chat.direct("ann", "bob").id == Chat.direct("bob", "ann").id
        True

        Raises NotPermitted if `user` has blocked `other`, or if the chat has to be opened and `other` has
        blocked `user` or left with `again=False`, or one of the two was removed by the other; LimitExceeded
        (USER_MAX_CHATS).
        """
        chat = cls(_checked_direct_id(user, other), using=using)
        chat._direct(user, other)
        return chat

    @classmethod
    async def adirect(cls, user: str, other: str, *, using: str | None = None) -> Self:
        """Async version of `direct`."""
        chat = cls(_checked_direct_id(user, other), using=using)
        await chat._adirect(user, other)
        return chat

    @operation
    def _direct(self, user: str, other: str) -> Steps[None]:
        """Open the chat as its members require; once more if another call changes them meanwhile."""
        self._pair = user, other
        for attempts_left in reversed(range(_DIRECT_ATTEMPTS)):
            lines, block = yield [
                Command("HMGET", self._keys.roster, user, other, reads=True),
                read_block(self._prefix, user, other),
            ]
            if block is not None:
                # once more, in case the process stopped that opened the chat while the other one was blocked
                yield from apply_block(self._prefix, user, other, is_blocked=True)
                refuse_to_blocker(user, other)
            if lines[0] is not None and lines[0].startswith(SUSPENDED):  # an unblocking was interrupted
                yield from apply_block(self._prefix, user, other, is_blocked=False)
            is_member, has_other = (line is not None for line in lines)
            try:
                if not is_member and not has_other:
                    yield from self._count_use(user, "create", member=False)
                    yield from self._write([user, other], request(None))
                elif not is_member:
                    yield from self._return(user, other)
                elif not has_other:
                    yield from self._count_use(user, "invite")
                    yield from self._join([other], "added", user)
                return
            except (ChatExists, ChatNotFound, NotAMember):
                if not attempts_left:
                    raise

    _adirect = asynchronous(_direct)

    def _return(self, user: str, other: str) -> Steps[None]:
        """Make a user who left a direct chat a member again, unless the other one has blocked them."""
        if (yield read_block(self._prefix, other, user)) is not None:
            refuse_blocked()
        yield from self._join([user], "returning", user)

    @operation
    def _create(
        self,
        sender: str,
        recipients: Iterable[str],
        body: str,
        title: str,
        open: bool,
        keep_last: int | None,
        request_id: str,
    ) -> Steps[None]:
        members = _unique(sender, recipients)
        title = payloads.text(title, "title", setting="TITLE_MAX_BYTES")
        has_body = entries.body_json(body) != '""'
        content = entries.encode_content(sender, body, None, None, request_id) if has_body else ""
        yield from self._count_use(sender, "create", member=False)
        if len(members) > 1:
            yield from self._count_use(sender, "invite", len(members) - 1, member=False)
        yield from self._write(members, request_id, title, flag(open, "open"), keep_last, content)

    _acreate = asynchronous(_create)

    def _write(
        self,
        members: list[str],
        request_id: str,
        title: str = "",
        is_open: int = 0,
        keep_last: int | None = None,
        content: str | bytes = "",
    ) -> Steps[None]:
        """Create the chat of checked members, the sender first, in three round trips."""
        keep = _checked_keep_last(keep_last)
        sender, token = members[0], digest(members[0], request_id)
        reserved = yield from self._reserve(members, token, sender)
        if len(reserved) < len(members):  # others with this chat in their index have blocked the sender
            yield from best_effort(self._release(reserved, token))
            refuse_blocked()
        arguments = (request_id, window(), token, title, is_open, keep, content, limits()[1])
        reply = yield Script("chat_create", self._keys.creating, (*arguments, *joining_users(reserved)))
        epoch, *in_force = yield from self._checked_joining(reply, members, token, sender)
        tokens = in_force or [token] * len(members)
        confirmed = zip(members, tokens, strict=True)
        yield from best_effort(self._confirm(confirmed, token, int(epoch), reserved, sender))


def _chat_id(chat_id: str | None, sender: str, request_id: str) -> str:
    """The given id, or one derived from the request id: a repeat must find the chat it created."""
    if chat_id is None:
        return digest(name(sender, "sender"), request_id)
    if name(chat_id, "chat_id").startswith(DIRECT):
        raise InvalidArgument(f"chat_id must not begin with {DIRECT!r}: use Chat.direct.")
    return chat_id


def _checked_direct_id(user: str, other: str) -> str:
    if name(user, "user") == name(other, "other"):
        raise InvalidArgument("other must be another user: a direct chat has two members.")
    return direct_id(user, other)


def _unique(sender: str, recipients: Iterable[str]) -> list[str]:
    """The members without duplicates, the sender first; the caller's list is not modified."""
    if isinstance(recipients, str):
        raise TypeError("recipients must be a list of names, not a str: wrap it in a list.")
    members = list(dict.fromkeys([name(sender, "sender"), *(name(user, "recipient") for user in recipients)]))
    limit = conf.current().CHAT_MAX_MEMBERS
    if len(members) > limit:
        raise LimitExceeded("members of a chat", limit=limit, actual=len(members), setting="CHAT_MAX_MEMBERS")
    return members


def _checked_keep_last(keep_last: int | None) -> int:
    if keep_last is None:
        keep_last = conf.current().CHAT_KEEP_LAST
    if not isinstance(keep_last, int) or isinstance(keep_last, bool):
        raise TypeError(f"keep_last must be an int or None, not {type(keep_last).__name__}.")
    if not 0 <= keep_last <= _MAX_KEEP_LAST:
        raise InvalidArgument(f"keep_last must be between 0 and {_MAX_KEEP_LAST}, not {keep_last}.")
    return keep_last
