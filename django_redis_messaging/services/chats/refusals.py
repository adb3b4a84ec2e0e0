"""The errors for what the scripts of a chat refuse."""

from __future__ import annotations

from typing import Any, NoReturn

from ... import conf
from ...errors import ChatExists, ChatNotFound, InvalidArgument, LimitExceeded, NotAMember, NotPermitted

#: reply of a script that refuses → the error class and its message
REFUSALS: dict[bytes, tuple[type[Exception], str]] = {
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


def checked_reply(reply: Any, chat_id: str, user: str = "", other: str = "") -> Any:
    """The reply of a script; raises an error if the script refused."""
    if isinstance(reply, bytes) and reply in REFUSALS:
        raise_refusal(reply, chat_id, user, other)
    return reply


def raise_refusal(refusal: bytes, chat_id: str, user: str, other: str) -> NoReturn:
    """Raise the error for a refusal. `other`: another user whom it concerns."""
    kind, text = REFUSALS[refusal]
    if kind is ChatExists:
        raise ChatExists(text.format(chat=chat_id), chat_id=chat_id)
    if kind is LimitExceeded:
        limit = conf.current().CHAT_MAX_MEMBERS
        raise LimitExceeded(text, limit=limit, actual=limit + 1, setting="CHAT_MAX_MEMBERS")
    raise kind(text.format(chat=chat_id, user=user, other=other))
