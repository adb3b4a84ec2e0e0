"""The entries of a chat's log: their limits, their content as it is stored, and the messages made of them.

_log.lua describes the format of an entry.
"""

from __future__ import annotations

import zlib
from datetime import UTC, datetime
from typing import Any

from ... import conf
from ...core import payloads
from ...errors import LimitExceeded
from ..common import arguments
from .values import Message

#: the quotes of a string: bytes
_QUOTES = 2
#: bytes of UTF-8
_MAX_CHARACTER = 4
#: elements of an entry without reply_to, data and mentions, and of one without mentions
_WITHOUT_OPTIONAL, _WITHOUT_MENTIONS = 9, 11

_new, _set, _fromtimestamp = object.__new__, object.__setattr__, datetime.fromtimestamp


def limits() -> tuple[int, int, int]:
    """The limits of a log: number of entries, their age in ms (0: none), and their bytes."""
    settings = conf.current()
    return settings.CHAT_MAX_LENGTH, int((settings.CHAT_MAX_AGE or 0) * 1000), settings.CHAT_MAX_BYTES


def limits_without_bytes() -> tuple[int, int]:
    """The limits that lists of chats apply: that of bytes would load an entry of each chat."""
    length, age, _ = limits()
    return length, age


def max_age() -> int:
    """The maximum age of an entry: ms, 0 for none."""
    return limits_without_bytes()[1]


def parse_cursor(value: str | int, what: str) -> tuple[int, int | str, str]:
    """Parse and check a cursor or a bare id: the id, the epoch, and the stamp as text, both '' for a bare
    id."""
    number, epoch, stamp = arguments.parse_cursor(value, what)
    return number, epoch, stamp if isinstance(stamp, str) else f"{stamp >> 32}-{stamp & 0xFFFFFFFF}"


def author_json(user: str) -> str:
    """A user's name as entries contain it."""
    return payloads.string(user)


def body_json(body: str) -> str:
    """A body as entries contain it, checked.

    A text of quotes takes twice its bytes, one of control characters six times: that much is not stored.
    """
    stored = payloads.string(payloads.text(body, "body", setting="MESSAGE_MAX_BYTES"))
    limit = 2 * conf.current().MESSAGE_MAX_BYTES + _QUOTES
    if len(stored) * _MAX_CHARACTER > limit and len(stored.encode()) > limit:
        raise LimitExceeded(
            "body as stored, with escaped control characters (bytes)",
            limit=limit,
            actual=len(stored.encode()),
            setting="MESSAGE_MAX_BYTES",
        )
    return stored


def as_stored(data: Any) -> Any:
    """`data` as it will be read: for example, a tuple becomes a list."""
    return None if data is None else payloads.loads_all([payloads.dumps(data, "data").encode()])[0]


def encode_content(
    sender: str, body: str, data: Any, reply_to: int | None, request_id: str, *, has_mentions: bool = False
) -> bytes:
    """Encode an entry without its time, mentions, offset and size, which the script adds."""
    author = author_json(sender).encode()
    text = body_json(body).encode()
    optional = b""
    if data is not None or reply_to is not None or has_mentions:
        stored = payloads.dumps(data, "data").encode()
        optional = f",{payloads.dumps(reply_to)},".encode() + stored
        limit = conf.current().MESSAGE_MAX_BYTES
        size = len(body.encode()) + (0 if data is None else len(stored))
        if size > limit:
            raise LimitExceeded(
                "body and data (bytes)", limit=limit, actual=size, setting="MESSAGE_MAX_BYTES"
            )
    nonce = zlib.crc32(request_id.encode())
    return b"%d,0,%d,%d,%b,%b%b" % (nonce, len(author), len(text), author, text, optional)


def epoch_of(newest: bytes) -> int:
    """The epoch of a chat, from the value of its key newest."""
    _, _, _, epoch, *_ = newest.split(b"-")
    return int(epoch)


def make_message(chat_id: str, epoch: int, number: int, entry: list[Any]) -> Message:
    """Make a Message of a decoded entry."""
    ms, nonce, edited = entry[:3]
    size = len(entry)
    message = _new(Message)
    # The __init__ of a frozen dataclass sets field by field, which takes three times as long.
    _set(
        message,
        "__dict__",
        {
            "id": number,
            "cursor": f"{epoch:x}-{number:x}-{ms << 32 | nonce:x}",
            "chat_id": chat_id,
            "sender": entry[5],
            "body": entry[6],
            "data": entry[8] if size > _WITHOUT_OPTIONAL else None,
            "reply_to": entry[7] if size > _WITHOUT_OPTIONAL else None,
            "mentions": tuple(entry[9]) if size > _WITHOUT_MENTIONS else (),
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


def end_cursor(epoch: int, first: int, stamp: str, messages: list[Message]) -> str:
    """The cursor of the last of `messages`; if there are none, of the entry before id `first`, which has this
    stamp ("ms-nonce")."""
    if messages:
        return messages[-1].cursor
    ms, nonce = map(int, stamp.split("-"))
    return arguments.format_cursor(epoch, first - 1, ms << 32 | nonce)
