"""What the parts of Chat share: its keys, and the refusals of its scripts in words."""

from __future__ import annotations

import logging
from typing import Any, NoReturn

from ... import conf
from ...core.keys import ChatKeys, name
from ...core.operations import Service, Steps
from ...errors import (
    ChatExists,
    ChatNotFound,
    LimitExceeded,
    NotAMember,
    NotPermitted,
    OutcomeUnknown,
    Unavailable,
)

_logger = logging.getLogger(__name__)


def limits() -> tuple[int, int]:
    """What a log holds at most: entries, and their age in ms (0: any)."""
    settings = conf.current()
    return settings.CHAT_MAX_LENGTH, int((settings.CHAT_MAX_AGE or 0) * 1000)


def upkeep(steps: Steps[None]) -> Steps[None]:
    """Steps that keep an index right, once what was asked for is done: if they can't be done now, the next
    look into the inbox makes up for it, and the caller must not hear that nothing has happened."""
    try:
        yield from steps
    except (Unavailable, OutcomeUnknown) as error:
        _logger.warning("An index of chats was left to be healed: %s", error)


class ChatBase(Service):
    """A chat by its id."""

    def __init__(self, chat_id: str, *, using: str | None = None) -> None:
        super().__init__(using=using)
        #: names the chat for ever
        self.id = name(chat_id, "chat_id")
        self._keys = ChatKeys(self._prefix, chat_id)

    @property
    def chat_id(self) -> str:
        """The id, by the name it has wherever it isn't the chat's own."""
        return self.id

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    def _accepted(self, reply: Any, user: str = "", other: str = "") -> Any:
        """The reply of a script, unless it is a refusal."""
        if isinstance(reply, bytes) and reply in _REFUSALS:
            self._refuse(reply, user, other)
        return reply

    def _refuse(self, why: bytes, user: str, other: str) -> NoReturn:
        kind, text = _REFUSALS[why]
        if kind is LimitExceeded:
            limit = conf.current().CHAT_MAX_MEMBERS
            raise LimitExceeded(text, limit=limit, actual=limit + 1)
        raise kind(text.format(chat=self.id, user=user, other=other))


#: what the scripts answer when they don't do it: the error, and its words
_REFUSALS: dict[bytes, tuple[type[Exception], str]] = {
    b"no chat": (
        ChatNotFound,
        "There is no chat {chat!r}: create it, or look whether its last member left.",
    ),
    b"no member": (NotAMember, "{user!r} is not a member of chat {chat!r}: let a member add them."),
    b"no other": (NotAMember, "{other!r} is not a member of chat {chat!r}."),
    b"not added": (NotAMember, "{other!r} is not a member of chat {chat!r}, so can't add anybody."),
    b"no remover": (NotAMember, "{other!r} is not a member of chat {chat!r}, so can't remove anybody."),
    b"closed": (
        NotAMember,
        "Chat {chat!r} is not open, so {user!r} can't join alone: let a member add them (by=…).",
    ),
    b"no owner": (NotPermitted, "This needs an owner of chat {chat!r}."),
    b"no author": (NotPermitted, "This message in chat {chat!r} is not by {user!r}."),
    b"last owner": (NotPermitted, "Chat {chat!r} must keep an owner: name another one first."),
    b"exists": (ChatExists, "There is a chat {chat!r} already: choose another chat_id, or join it."),
    b"no message": (ValueError, "reply_to is beyond the newest message of chat {chat!r}."),
    b"full": (LimitExceeded, "members of a chat (CHAT_MAX_MEMBERS)"),
}
