"""The chat itself, and how one comes to be."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Self

from ... import conf
from ...core import payloads
from ...core.keys import name
from ...core.operations import Script, Steps, asynchronous, operation
from ...errors import LimitExceeded
from ..arguments import flag
from ..requests import request, window
from . import entries
from .base import upkeep
from .membership import Membership
from .talk import Talk

#: messages kept at most for scroll-back: below what a script writes with an exponent
_MOST_KEPT = 10**9


class Chat(Talk, Membership):
    """A group chat, named by its id. Making the object does no I/O and needs no such chat to exist.

    *Every member receives every message sent while a member, in one order per chat, ids 1, 2, 3 …
    without holes, at least once until acked; if a limit removed some, the reader is told the gap; if
    Redis lost data, the reader is told `reset`.*

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
        """Make a chat of the sender, who owns it, and the recipients; with a first message, if any.

        `open` chats may be joined by anybody alone. `keep_last` is how many messages stay for
        scroll-back once all members have acked them (default CHAT_KEEP_LAST; 0: none).
        Three round trips: the members' lists of chats, the chat, the lists again.

        Raises ChatExists (the same `request_id` gets the first answer), LimitExceeded
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
        """`create`, awaiting."""
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
        title = payloads.text(title, "title", limit=conf.current().TITLE_MAX_BYTES)
        tail = entries.tail(sender, body, None, None) if entries.body_text(body) != '""' else ""
        is_open = flag(open, "open")
        keep = _kept(keep_last)
        token = _digest(request_id)
        yield from self._expect(members, token)
        reply = yield Script(
            "chat_create",
            self._keys.creating,
            (request_id, window(), token, title, is_open, keep, tail, *members),
        )
        epoch, *in_force = self._accepted(reply, sender)
        tokens = [one.decode() for one in in_force] or [token] * len(members)
        known = [pair for pair in zip(members, tokens, strict=True) if pair[1]]
        yield from upkeep(self._confirm(known, token, int(epoch)))

    _acreate = asynchronous(_create)


def _chat_id(chat_id: str | None, sender: str, request_id: str) -> str:
    """A repeat must find the chat of its first sending, so an id made here is made of the request's."""
    return _digest(f"{sender}\0{request_id}") if chat_id is None else chat_id


def _digest(value: str) -> str:
    return hashlib.blake2b(value.encode(errors="surrogatepass"), digest_size=12).hexdigest()


def _unique(sender: str, recipients: Iterable[str]) -> list[str]:
    """The members, each once, the sender first; the caller's list stays as it is."""
    if isinstance(recipients, str):
        raise TypeError("recipients must be a list of names, not one str: wrap it in a list.")
    members = list(dict.fromkeys([name(sender, "sender"), *(name(one, "recipient") for one in recipients)]))
    limit = conf.current().CHAT_MAX_MEMBERS
    if len(members) > limit:
        raise LimitExceeded("members of a chat (CHAT_MAX_MEMBERS)", limit=limit, actual=len(members))
    return members


def _kept(keep_last: int | None) -> int:
    if keep_last is None:
        keep_last = conf.current().CHAT_KEEP_LAST
    if not isinstance(keep_last, int) or isinstance(keep_last, bool):
        raise TypeError(f"keep_last must be an int or None, not {type(keep_last).__name__}.")
    if not 0 <= keep_last <= _MOST_KEPT:
        raise ValueError(f"keep_last is {keep_last}: it can be 0 to {_MOST_KEPT}.")
    return keep_last
