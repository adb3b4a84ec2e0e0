"""The public class, and how a chat is created."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Self

from ... import conf
from ...core import payloads
from ...core.keys import name
from ...core.operations import Script, Steps, asynchronous, operation
from ...errors import InvalidArgument, LimitExceeded
from ..arguments import flag, request, window
from . import entries
from .base import best_effort, limits
from .membership import Membership
from .messages import Messages

#: messages: Lua would write larger numbers with an exponent
_MAX_KEEP_LAST = 10**9


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

        Raises ChatExists (but a repeat with the same `request_id` gets the first answer), LimitExceeded
        (CHAT_MAX_MEMBERS, MESSAGE_MAX_BYTES, USER_MAX_CHATS).
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
        content = entries.encode_content(sender, body, None, None) if entries.body_json(body) != '""' else ""
        is_open = flag(open, "open")
        keep = _checked_keep_last(keep_last)
        token = _digest(request_id)
        yield from self._reserve(members, token)
        reply = yield Script(
            "chat_create",
            self._keys.creating,
            (request_id, window(), token, title, is_open, keep, content, limits()[1], *members),
        )
        epoch, *in_force = yield from self._checked_joining(reply, members, token, sender)
        tokens = [raw.decode() for raw in in_force] or [token] * len(members)
        current = [pair for pair in zip(members, tokens, strict=True) if pair[1]]
        yield from best_effort(self._confirm(current, token, int(epoch)))

    _acreate = asynchronous(_create)


def _chat_id(chat_id: str | None, sender: str, request_id: str) -> str:
    """The given id, or one derived from the request id: a repeat must find the chat it created."""
    return _digest(f"{sender}\0{request_id}") if chat_id is None else chat_id


def _digest(value: str) -> str:
    return hashlib.blake2b(value.encode(errors="surrogatepass"), digest_size=12).hexdigest()


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
