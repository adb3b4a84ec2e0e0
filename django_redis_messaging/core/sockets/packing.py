"""Encodes calls in the protocol of Redis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from hiredis import pack_command

from ..steps import BulkWords, Words


def pack(calls: Sequence[Words]) -> Sequence[bytes]:
    """Encode calls into pieces to be sent one after the other: one piece, unless there are bulk words. Uses
    the hiredis packer directly: the driver's converts each word first."""
    if len(calls) == 1 and type(calls[0]) is tuple:
        return (cast(bytes, pack_command(cast(Any, calls[0]))),)
    pieces: list[bytes] = []
    packed: list[bytes] = []
    for words in calls:
        if isinstance(words, BulkWords):
            *others, data = words
            _, _, encoded = cast(bytes, pack_command(cast(Any, tuple(others)))).partition(b"\r\n")
            packed.append(b"*%d\r\n%b$%d\r\n" % (len(words), encoded, len(data)))
            pieces += (b"".join(packed), cast(bytes, data))
            packed = [b"\r\n"]
        else:
            packed.append(cast(bytes, pack_command(cast(Any, words))))
    return (*pieces, b"".join(packed))
