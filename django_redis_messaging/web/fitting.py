"""How many messages fit into one answer."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

from ..services.chats import Changes

#: bytes of the messages in an answer
MAX_BYTES = 256 * 1024


def fitting(messages: Iterable[dict[str, Any]], max_bytes: int = MAX_BYTES) -> list[dict[str, Any]]:
    """The first messages that have at most `max_bytes` together as JSON, but at least one. Takes at most one
    more from an iterator: what does not fit is not rendered.

    >>> fitting([{"id": 1}, {"id": 2}, {"id": 3}], max_bytes=20)
    [{'id': 1}, {'id': 2}]
    """
    found: list[dict[str, Any]] = []
    size = 0
    for message in messages:
        size += len(json.dumps(message, ensure_ascii=False).encode())
        if size > max_bytes and found:
            break
        found.append(message)
    return found


def count_fitting(sizes: Iterable[int], max_bytes: int) -> int:
    """How many of the first sizes have at most this sum, but at least one.

    >>> count_fitting([5, 5, 1], 9), count_fitting([10, 1], 9), count_fitting([], 9)
    (1, 1, 0)
    """
    count = total = 0
    for size in sizes:
        total += size
        if total > max_bytes and count:
            break
        count += 1
    return count


def split(changes: Changes, count: int) -> tuple[Changes, Changes | None]:
    """The changes with the first `count` of the new and then of the edited messages, and those with the rest,
    as the next call would return them; None if there is no rest."""
    size, cut = len(changes.messages), max(count - len(changes.messages), 0)
    if count >= size + len(changes.edited):
        return changes, None
    messages = changes.messages[:count]
    left_out = changes.edit_numbers[cut:]
    first = dataclasses.replace(
        changes,
        messages=messages,
        cursor=messages[-1].cursor if messages else changes.cursor,
        edited=changes.edited[:cut],
        edit_numbers=changes.edit_numbers[:cut],
        # directly before the first one that is left out
        edits=left_out[0] - 1 if left_out else changes.edits,
        has_more=True,
    )
    rest = dataclasses.replace(
        changes,
        messages=changes.messages[count:],
        edited=changes.edited[cut:],
        edit_numbers=left_out,
        gap=0, reset=False, edits_missed=False, events=[],
    )  # fmt: skip
    return first, rest
