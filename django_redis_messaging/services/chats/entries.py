"""Messages as they are stored, and the cursors that name them. The form of an entry is in lua/_log.lua."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from ... import conf
from ...core import payloads
from ...errors import LimitExceeded
from .values import Message

_CURSOR = re.compile(r"([0-9a-f]{1,14})-([0-9a-f]{1,13})-([0-9a-f]{1,13})", re.ASCII)
#: more messages than a chat will ever have; below what a script's number can count
_MAX_ID = 2**52


class Position(NamedTuple):
    """A place in a chat, as the scripts take it: a bare id has no epoch and no time."""

    id: int
    epoch: int | str = ""
    ms: int | str = ""


def moment(ms: int | bytes) -> datetime:
    """A server's ms as an aware datetime."""
    return datetime.fromtimestamp(int(ms) / 1000, UTC)


def position(value: str | int, what: str) -> Position:
    """A cursor or a bare id, checked."""
    if isinstance(value, str):
        match = _CURSOR.fullmatch(value)
        if match is None:
            raise ValueError(f"{what} is not a cursor of a message: pass message.cursor, or an id.")
        epoch, number, ms = (int(part, 16) for part in match.groups())
        return Position(number, epoch, ms)
    return Position(identifier(value, what, least=0))


def identifier(value: int, what: str, *, least: int = 1) -> int:
    """A message's id, checked."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} must be an id or a cursor, not {type(value).__name__}.")
    if not least <= value <= _MAX_ID:
        raise ValueError(f"{what} is {value}: ids begin with {least}.")
    return value


def author(user: str) -> str:
    """A user's name as it stands in entries."""
    return payloads.dumps(user)


def body_text(body: str) -> str:
    """A body as it stands in entries, checked."""
    limit = conf.current().MESSAGE_MAX_BYTES
    return payloads.dumps(payloads.text(body, "body", limit=limit))


def tail(sender: str, body: str, data: Any, reply_to: int | None) -> str:
    """All of an entry but the two numbers that the server puts in front."""
    who, what = author(sender), body_text(body)
    rest = "" if data is None and reply_to is None else _rest(data, reply_to)
    limit = conf.current().MESSAGE_MAX_BYTES
    if len(what) + len(rest) > limit // 4:  # a character has four bytes at most: count only what may be over
        size = len(what.encode()) + len(rest.encode())
        if size > limit:
            raise LimitExceeded("body and data (bytes)", limit=limit, actual=size)
    who_size, what_size = len(who.encode()), len(what.encode())
    return f"0,{who_size},{what_size},{who},{what}{rest}]"


def _rest(data: Any, reply_to: int | None) -> str:
    encoded = payloads.dumps(data, "data")
    try:
        encoded.encode()
    except UnicodeEncodeError:
        raise ValueError("data has a lone surrogate, which UTF-8 can't carry: remove it.") from None
    return f",{payloads.dumps(reply_to)},{encoded}"


def message(chat_id: str, epoch: int, number: int, entry: list[Any]) -> Message:
    """A decoded entry as a Message."""
    ms, _, edited, _, _, sender, body, *rest = entry
    reply_to, data = rest or (None, None)
    return Message(
        id=number,
        cursor=f"{epoch:x}-{number:x}-{ms:x}",
        chat_id=chat_id,
        sender=sender,
        body=body,
        data=data,
        reply_to=reply_to,
        kind="text",
        sent_at=moment(ms),
        edited_at=moment(abs(edited)) if edited else None,
        deleted=edited < 0,
    )


def messages(chat_id: str, epoch: int, first: int, entries: Iterable[Any]) -> list[Message]:
    """Decoded entries as messages, from id `first` on."""
    return [message(chat_id, epoch, number, entry) for number, entry in enumerate(entries, first)]
