"""What all parts of Chat share: its keys, its limits, and the errors for refusals of its scripts."""

from __future__ import annotations

import logging
from typing import Any, NoReturn

from ... import conf
from ...core.keys import name
from ...core.operations import Script, Service, Steps
from ...errors import (
    ChatExists,
    ChatNotFound,
    InvalidArgument,
    LimitExceeded,
    NotAMember,
    NotPermitted,
    OutcomeUnknown,
    Unavailable,
)
from ..rates import Rate
from .keys import ChatKeys

_logger = logging.getLogger(__name__)

#: COMMAND_DEADLINEs: longer than a joining takes
_GRACE = 3


def limits() -> tuple[int, int, int]:
    """The limits of a chat's log: number of entries, their age in ms (0: none), and their bytes."""
    settings = conf.current()
    return settings.CHAT_MAX_LENGTH, int((settings.CHAT_MAX_AGE or 0) * 1000), settings.CHAT_MAX_BYTES


def typing_window() -> int:
    """How long a member counts as typing, in ms."""
    return int(conf.current().TYPING_WINDOW * 1000)


def grace() -> int:
    """Minimum age in ms of an index entry that is removed because the user is not a member: a joining writes
    the entry first."""
    return int(conf.current().COMMAND_DEADLINE * _GRACE * 1000)


def best_effort(steps: Steps[None]) -> Steps[None]:
    """Update an index after the operation itself has been applied.

    A failure must not reach the caller, who would take the operation for failed. The next read of the inbox
    repairs the index.
    """
    try:
        yield from steps
    except (Unavailable, OutcomeUnknown) as error:
        _logger.warning("Updating an index of chats failed, repaired on the next read: %s", error)


class ChatBase(Service):
    """A chat, named by its id."""

    def __init__(self, chat_id: str, *, using: str | None = None) -> None:
        super().__init__(using=using)
        #: never changes
        self.id = name(chat_id, "chat_id")
        self._keys = ChatKeys(self._prefix, chat_id)

    @property
    def chat_id(self) -> str:
        """The id, under the name that other classes use for it."""
        return self.id

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    def _count_use(self, user: str, action: str, times: int = 1, *, member: bool = True) -> Steps[None]:
        """With RATES_IN_SERVICES, count what a member does, up to its rate. Who is refused as no member (if
        `member`) has used nothing."""
        if not conf.current().RATES_IN_SERVICES:
            return
        if member:
            yield from self._read_role(user)
        yield from Rate.of(user, action, using=self._using).required(times)

    def _read_role(self, user: str) -> Steps[str]:
        reply = yield Script("chat_role", (self._keys.newest, self._keys.roster), (user,))
        role: bytes = self._checked(reply, user)
        return role.decode()

    def _checked(self, reply: Any, user: str = "", other: str = "") -> Any:
        """The reply of a script; raises an error if the script refused."""
        if isinstance(reply, bytes) and reply in _REFUSALS:
            self._raise_refusal(reply, user, other)
        return reply

    def _raise_refusal(self, refusal: bytes, user: str, other: str) -> NoReturn:
        kind, text = _REFUSALS[refusal]
        if kind is ChatExists:
            raise ChatExists(text.format(chat=self.id), chat_id=self.id)
        if kind is LimitExceeded:
            limit = conf.current().CHAT_MAX_MEMBERS
            raise LimitExceeded(text, limit=limit, actual=limit + 1, setting="CHAT_MAX_MEMBERS")
        raise kind(text.format(chat=self.id, user=user, other=other))


#: refusals of the scripts: the error class and its message
_REFUSALS: dict[bytes, tuple[type[Exception], str]] = {
    b"no chat": (
        ChatNotFound,
        "Chat {chat!r} does not exist: it was never created, was deleted, or its last member left.",
    ),
    b"no member": (NotAMember, "{user!r} is not a member of chat {chat!r}. A member can add them."),
    b"no other": (NotAMember, "{other!r} is not a member of chat {chat!r}."),
    b"not added": (NotAMember, "{other!r} is not a member of chat {chat!r} and can't add members."),
    b"no remover": (NotAMember, "{other!r} is not a member of chat {chat!r} and can't remove members."),
    b"closed": (NotAMember, "Chat {chat!r} is not open: a member must add {user!r} (by=…)."),
    b"removed": (NotPermitted, "{user!r} was removed from chat {chat!r}: only an owner can add them again."),
    b"opted out": (NotPermitted, "{user!r} left chat {chat!r} and does not want to be added again."),
    b"damaged": (
        ChatNotFound,
        "Chat {chat!r} has lost some of its keys: run manage.py messaging_repair to rebuild them.",
    ),
    b"no members": (
        ChatNotFound,
        "Chat {chat!r} can't be repaired: both its members and its roster are lost. Chat.delete removes the "
        "rest of it.",
    ),
    b"no owner": (NotPermitted, "Only an owner of chat {chat!r} can do this."),
    b"no author": (NotPermitted, "{user!r} did not write this message in chat {chat!r}."),
    b"last owner": (NotPermitted, "Chat {chat!r} must keep an owner: make another member an owner first."),
    b"exists": (ChatExists, "Chat {chat!r} already exists: choose another chat_id, or join it."),
    b"no message": (
        InvalidArgument,
        "reply_to must be the id of a message in chat {chat!r}: it is above the newest.",
    ),
    b"full": (LimitExceeded, "members of a chat"),
}
