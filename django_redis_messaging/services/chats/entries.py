"""Messages as they are stored, and the cursors that name them. The form of an entry is in lua/_log.lua."""

from __future__ import annotations

import re
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
    return payloads.string(user)


def body_text(body: str) -> str:
    """A body as it stands in entries, checked."""
    return payloads.string(payloads.text(body, "body", limit=conf.current().MESSAGE_MAX_BYTES))


def as_stored(data: Any) -> Any:
    """What comes back of `data`: a tuple, for one, as a list."""
    return None if data is None else payloads.loads_all([payloads.dumps(data, "data").encode()])[0]


def tail(sender: str, body: str, data: Any, reply_to: int | None) -> bytes:
    """All of an entry but the two numbers that the server puts in front."""
    who = author(sender).encode()
    what = body_text(body).encode()
    if data is None and reply_to is None:
        return b"0,%d,%d,%b,%b]" % (len(who), len(what), who, what)
    rest = f",{payloads.dumps(reply_to)},{payloads.dumps(data, 'data')}".encode()
    limit, size = conf.current().MESSAGE_MAX_BYTES, len(what) + len(rest)
    if size > limit:
        raise LimitExceeded("body and data (bytes)", limit=limit, actual=size)
    return b"0,%d,%d,%b,%b%b]" % (len(who), len(what), who, what, rest)


def message(chat_id: str, epoch: int, number: int, entry: list[Any]) -> Message:
    """A decoded entry as a Message."""
    ms, edited = entry[0], entry[2]
    made = _new(Message)
    # A frozen dataclass's own __init__ sets field by field, which takes three times as long.
    _set(
        made,
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
            "sent_at": _at(ms / 1000, UTC),
            "edited_at": _at(abs(edited) / 1000, UTC) if edited else None,
            "deleted": edited < 0,
        },
    )
    return made


def cursor(epoch: int, number: int, ms: int = 0) -> str:
    """The cursor of an entry; without ms that of a place, of which only the chat's epoch is known."""
    return f"{epoch:x}-{number:x}-{ms:x}"


def before(first: Message) -> str:
    """The place before a message."""
    return cursor(int(first.cursor.partition("-")[0], 16), first.id - 1)


def end_of(epoch: int, first: int, read: list[Message]) -> str:
    """Where messages from id `first` on end, if there are any."""
    return read[-1].cursor if read else cursor(epoch, first - 1)


def messages(chat_id: str, epoch: int, first: int, raw: list[bytes]) -> list[Message]:
    """Entries as messages, from id `first` on."""
    decoded = payloads.loads_all(raw)
    return [message(chat_id, epoch, number, entry) for number, entry in enumerate(decoded, first)]


_new, _set, _at = object.__new__, object.__setattr__, datetime.fromtimestamp
