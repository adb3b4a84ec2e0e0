"""How many messages fit into one answer."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

#: bytes of the messages in an answer
MAX_BYTES = 256 * 1024


def fitting(messages: Iterable[dict[str, Any]], max_bytes: int = MAX_BYTES) -> list[dict[str, Any]]:
    """The first messages that have at most `max_bytes` together as JSON, but at least one.

    >>> fitting([{"id": 1}, {"id": 2}, {"id": 3}], max_bytes=20)
    [{'id': 1}, {'id': 2}]
    """
    found = list(messages)
    sizes = (len(json.dumps(message, ensure_ascii=False).encode()) for message in found)
    return found[: count_fitting(sizes, max_bytes)]


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
