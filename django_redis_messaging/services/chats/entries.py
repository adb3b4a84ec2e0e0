"""Stored messages, and the cursors that refer to them. The format of an entry is in lua/_log.lua."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, NamedTuple

from ... import conf
from ...core import payloads
from ...errors import InvalidArgument, LimitExceeded
from .values import Message

_CURSOR = re.compile(r"([0-9a-f]{1,14})-([0-9a-f]{1,13})-([0-9a-f]{1,13})", re.ASCII)
#: above any id that a chat can reach, and still exact as a number in Lua
_MAX_ID = 2**52


class Cursor(NamedTuple):
    """A cursor as the scripts take it. A bare id has neither epoch nor time."""

    id: int
    epoch: int | str = ""
    ms: int | str = ""


def parse_cursor(value: str | int, what: str) -> Cursor:
    """Parse and check a cursor or a bare id."""
    if isinstance(value, str):
        match = _CURSOR.fullmatch(value)
        if match is None:
            raise InvalidArgument(f"{what} is not a cursor: pass the cursor of a message, or its id.")
        epoch, number, ms = (int(part, 16) for part in match.groups())
        return Cursor(number, epoch, ms)
    return Cursor(checked_id(value, what, min_id=0))


def checked_id(value: int, what: str, *, min_id: int = 1) -> int:
    """`value` if it can be the id of a message."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} must be an id or a cursor, not {type(value).__name__}.")
    if not min_id <= value <= _MAX_ID:
        raise InvalidArgument(f"{what} must be between {min_id} and {_MAX_ID}, not {value}.")
    return value


def author_json(user: str) -> str:
    """A user's name as entries contain it."""
    return payloads.string(user)


def body_json(body: str) -> str:
    """A body as entries contain it, checked."""
    return payloads.string(payloads.text(body, "body", setting="MESSAGE_MAX_BYTES"))


def as_stored(data: Any) -> Any:
    """`data` as it will be read: for example, a tuple becomes a list."""
    return None if data is None else payloads.loads_all([payloads.dumps(data, "data").encode()])[0]


def encode_content(sender: str, body: str, data: Any, reply_to: int | None) -> bytes:
    """Encode an entry without the two numbers at its beginning, which the script adds."""
    author = author_json(sender).encode()
    text = body_json(body).encode()
    if data is None and reply_to is None:
        return b"0,%d,%d,%b,%b]" % (len(author), len(text), author, text)
    optional = f",{payloads.dumps(reply_to)},{payloads.dumps(data, 'data')}".encode()
    limit, size = conf.current().MESSAGE_MAX_BYTES, len(text) + len(optional)
    if size > limit:
        raise LimitExceeded("body and data (bytes)", limit=limit, actual=size, setting="MESSAGE_MAX_BYTES")
    return b"0,%d,%d,%b,%b%b]" % (len(author), len(text), author, text, optional)


def make_message(chat_id: str, epoch: int, number: int, entry: list[Any]) -> Message:
    """Make a Message of a decoded entry."""
    ms, edited = entry[0], entry[2]
    message = _new(Message)
    # The __init__ of a frozen dataclass sets field by field, which takes three times as long.
    _set(
        message,
        "__dict__",
        {
            "id": number,
            "cursor": f"{epoch:x}-{number:x}-{ms:x}",
            "chat_id": chat_id,
            "sender": entry[5],
            "body": entry[6],
            "data": entry[8] if len(entry) > 7 else None,
            "reply_to": entry[7] if len(entry) > 7 else None,
            "kind": "text",
            "sent_at": _fromtimestamp(ms / 1000, UTC),
            "edited_at": _fromtimestamp(abs(edited) / 1000, UTC) if edited else None,
            "deleted": edited < 0,
        },
    )
    return message


def make_messages(chat_id: str, epoch: int, first: int, raw: list[bytes]) -> list[Message]:
    """Decode entries with ids from `first` on."""
    decoded = payloads.loads_all(raw)
    return [make_message(chat_id, epoch, number, entry) for number, entry in enumerate(decoded, first)]


def format_cursor(epoch: int, number: int, ms: int = 0) -> str:
    """The cursor of an entry; without `ms`, of a position where only the chat's epoch can be checked."""
    return f"{epoch:x}-{number:x}-{ms:x}"


def cursor_before(message: Message) -> str:
    """The cursor of the position before a message."""
    return format_cursor(int(message.cursor.partition("-")[0], 16), message.id - 1)


def end_cursor(epoch: int, first: int, messages: list[Message]) -> str:
    """The cursor of the last of `messages`; if there are none, of the position before id `first`."""
    return messages[-1].cursor if messages else format_cursor(epoch, first - 1)


_new, _set, _fromtimestamp = object.__new__, object.__setattr__, datetime.fromtimestamp
