"""The members of a directory as the scripts store them, and the checks of their names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ...core import payloads
from ...core.keys import name
from ...errors import InvalidArgument, LimitExceeded
from .folding import MAX_SUFFIX_BYTES, MAX_WORD_STARTS, all_suffixes, byte_size

#: entries per script call with several members; replacing members moves twice as many
PAGE_SIZE = 250
#: characters of a prefix; folding makes at most 18 of each
MAX_PREFIX = 1000


@dataclass(frozen=True, slots=True)
class Record:
    """A member as the scripts store it: see DirectoryKeys.records."""

    id: str
    packed: str
    entries: int


def pack(member: str, label: str, aliases: Sequence[str]) -> Record:
    """Make the record of a member; raises LimitExceeded if it would have too many or too long suffixes."""
    name(member, "member")
    texts = [_checked_label(label, "label"), *(_checked_label(alias, "alias") for alias in aliases)]
    suffixes = all_suffixes(texts)
    if len(suffixes) > MAX_WORD_STARTS:
        raise LimitExceeded("word starts of label and aliases", limit=MAX_WORD_STARTS, actual=len(suffixes))
    size = byte_size(suffixes)
    if size > MAX_SUFFIX_BYTES:
        raise LimitExceeded(
            "folded text from each word start of label and aliases (bytes)",
            limit=MAX_SUFFIX_BYTES,
            actual=size,
        )
    return Record(member, "\0".join([label, *suffixes]), len(suffixes))


def _checked_label(value: str, what: str) -> str:
    payloads.text(value, what, setting="LABEL_MAX_BYTES")
    if not value:
        raise InvalidArgument(f"{what} is empty: members are found by its text.")
    return without_nul(value, what)


def without_nul(value: str, what: str) -> str:
    """Return `value` if it contains no NUL, which separates the parts of entries and records."""
    if "\0" in value:
        raise InvalidArgument(f"{what} must not contain a NUL character.")
    return value


def checked_prefix(value: str) -> str:
    """Return `value` if it is a text that is short enough to be searched for."""
    if len(payloads.text(value, "prefix")) > MAX_PREFIX:
        raise InvalidArgument(f"prefix must have at most {MAX_PREFIX} characters, not {len(value)}.")
    return value


def checked_list(values: Iterable[str], what: str) -> list[str]:
    """Return `values` as a list unless they are a single text."""
    if isinstance(values, str | bytes):
        raise TypeError(f"{what} must be a list, not a {type(values).__name__}: wrap it in a list.")
    return list(values)


def checked_pair(item: object) -> tuple[str, str]:
    """Return `item` if it is a pair."""
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise TypeError(f"pairs must contain (member, label) tuples, not {type(item).__name__}.")
    return item[0], item[1]


def pages(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Group records into lists of at most PAGE_SIZE entries."""
    page: list[Record] = []
    room = PAGE_SIZE
    for record in records:
        if record.entries > room:
            yield page
            page, room = [], PAGE_SIZE
        page.append(record)
        room -= record.entries
    if page:
        yield page
