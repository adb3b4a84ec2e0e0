"""How names are matched: folded, from the start of each word.

Texts are folded by NFKC, casefold, NFKC, so that "Straße" equals "STRASSE", "ﬁ" equals "fi", and "é" as one
character equals "é" as two. A prefix matches a text if the folded text, from the start of one of its words,
begins with the folded prefix, code point by code point. So "e" does not match "é", which is one code point
when folded; and a half-typed syllable ("하" on the way to "한") matches only texts that begin with it as
typed.

Labels with Chinese characters also match by their spellings in pinyin: see pinyin.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from unicodedata import normalize

from .pinyin import spellings

#: word starts of a member's label and aliases together
MAX_WORD_STARTS = 128
#: bytes of a member's suffixes together: some characters are several times as long when folded
MAX_SUFFIX_BYTES = 64 * 1024
#: a word starts after one of these, or after white space
_SEPARATORS = frozenset("-_.@")


def fold(text: str) -> str:
    """Fold `text` for comparison.

    >>> fold("Jo\\u0308hn STRASSE \\uff21") == fold("jöhn Straße A") == "jöhn strasse a"
    True
    """
    return normalize("NFKC", normalize("NFKC", text).casefold())


def all_suffixes(labels: Iterable[str]) -> list[str]:
    """The texts that prefixes are compared with, without duplicates.

    They are the folded labels from the start of each word, and then as many spellings in pinyin as a member
    may have besides.

    >>> all_suffixes(["Ann-Lee  O.", "Lee"])
    ['ann-lee  o.', 'lee  o.', ' o.', 'o.', 'lee']
    >>> all_suffixes(["Ann 王"])
    ['ann 王', '王', 'ann wang', 'wang', 'ann yu', 'yu']
    """
    starts = {folded: _word_starts(folded) for folded in map(fold, labels)}
    found = dict.fromkeys(folded[at:] for folded in starts for at in starts[folded])
    spelled = dict.fromkeys(text for folded in starts for text in spellings(folded, starts[folded]))
    return [*found, *_fitting([text for text in spelled if text not in found], found)]


def _fitting(spelled: Iterable[str], found: Collection[str]) -> Iterator[str]:
    """The first spellings, as many as fit into the limits of a member in addition to the suffixes `found`."""
    room, size = MAX_WORD_STARTS - len(found), byte_size(found)
    for text in islice(spelled, max(room, 0)):
        size += len(text.encode())
        if size > MAX_SUFFIX_BYTES:
            return
        yield text


def byte_size(suffixes: Iterable[str]) -> int:
    """Bytes of suffixes together."""
    return sum(len(suffix.encode()) for suffix in suffixes)


def matches(prefix: str, label: str) -> bool:
    """Whether a folded prefix matches a label."""
    return any(suffix.startswith(prefix) for suffix in all_suffixes([label]))


def _word_starts(text: str) -> list[int]:
    return [
        at
        for at in range(len(text))
        if at == 0 or text[at - 1] in _SEPARATORS or text[at - 1].isspace()
    ]  # fmt: skip
