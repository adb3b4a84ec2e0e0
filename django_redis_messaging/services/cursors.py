"""Cursors: opaque references to the entries of a chat or a mailbox, that detect lost data.

A cursor consists of three hexadecimal numbers: the epoch of the log (when it was made), the entry's id, and
the entry's stamp, which differs from that of any other entry with this id.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ..errors import InvalidArgument

_CURSOR = re.compile(r"([0-9a-f]{1,14})-([0-9a-f]{1,13})-([0-9a-f]{1,21})", re.ASCII)
#: above any id that a log can reach, and still exact as a number in Lua
_MAX_ID = 2**52


class Cursor(NamedTuple):
    """A cursor as the scripts take it. A bare id has neither epoch nor stamp."""

    id: int
    epoch: int | str = ""
    stamp: int | str = ""


def parse_cursor(value: str | int, what: str) -> Cursor:
    """Parse and check a cursor or a bare id."""
    if isinstance(value, str):
        match = _CURSOR.fullmatch(value)
        if match is None:
            raise InvalidArgument(f"{what} is not a cursor: pass the cursor of a message, or its id.")
        epoch, number, stamp = (int(part, 16) for part in match.groups())
        return Cursor(number, epoch, stamp)
    return Cursor(checked_id(value, what, min_id=0))


def format_cursor(epoch: int, number: int, stamp: int = 0) -> str:
    """The cursor of an entry; without `stamp`, of a position where only the epoch can be checked."""
    return f"{epoch:x}-{number:x}-{stamp:x}"


def checked_id(value: int, what: str, *, min_id: int = 1) -> int:
    """`value` if it can be the id of an entry."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} must be an id or a cursor, not {type(value).__name__}.")
    if not min_id <= value <= _MAX_ID:
        raise InvalidArgument(f"{what} must be between {min_id} and {_MAX_ID}, not {value}.")
    return value
