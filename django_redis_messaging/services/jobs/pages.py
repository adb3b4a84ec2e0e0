"""The pages in which many jobs are pushed: one script each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

#: jobs that one script pushes, redrives or deletes at most
PAGE = 200
#: bytes of payloads that one script pushes at most, unless a single job has more
PAGE_BYTES = 2**20


def pages(jobs: Iterable[T], payload: Callable[[T], str]) -> Iterator[list[T]]:
    """Group jobs into pages, in their order. `payload` returns the payload of a job.

    >>> [len(page) for page in pages(["x" * 600_000, "x" * 600_000, "x"], str)]
    [1, 2]
    """
    page: list[T] = []
    size = 0
    for job in jobs:
        text = payload(job)
        added = len(text) if text.isascii() else len(text.encode())
        if page and (len(page) == PAGE or size + added > PAGE_BYTES):
            yield page
            page, size = [], 0
        page.append(job)
        size += added
    if page:
        yield page
