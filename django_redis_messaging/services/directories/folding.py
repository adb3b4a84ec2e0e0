"""How names are matched: folded, from the start of each word.

Texts are folded by NFKC, casefold, NFKC, so that "Straße" equals "STRASSE", "ﬁ" equals "fi", and "é" as one
character equals "é" as two. A prefix matches a text if the folded text, from the start of one of its words,
begins with the folded prefix, code point by code point. So "e" does not match "é", which is one code point
when folded; and a half-typed syllable ("하" on the way to "한") matches only texts that begin with it as
typed.
"""

from __future__ import annotations

from collections.abc import Iterable
from unicodedata import normalize

#: a word starts after one of these, or after white space
_SEPARATORS = frozenset("-_.@")


def fold(text: str) -> str:
    """Fold `text` for comparison.

    >>> fold("Jo\\u0308hn STRASSE \\uff21") == fold("jöhn Straße A") == "jöhn strasse a"
    True
    """
    return normalize("NFKC", normalize("NFKC", text).casefold())


def variants(label: str) -> list[str]:
    """The folded texts under which a label is found."""
    return [fold(label)]


def suffixes(label: str) -> list[str]:
    """The texts that prefixes are compared with: each variant from the start of each of its words.

    >>> suffixes("Ann-Lee  O.")
    ['ann-lee  o.', 'lee  o.', ' o.', 'o.']
    """
    return [variant[start:] for variant in variants(label) for start in _word_starts(variant)]


def all_suffixes(labels: Iterable[str]) -> list[str]:
    """The suffixes of several labels, without duplicates."""
    return list(dict.fromkeys(suffix for label in labels for suffix in suffixes(label)))


def matches(prefix: str, label: str) -> bool:
    """Whether a folded prefix matches a label."""
    return any(suffix.startswith(prefix) for suffix in suffixes(label))


def _word_starts(text: str) -> list[int]:
    return [
        at
        for at in range(len(text))
        if at == 0 or text[at - 1] in _SEPARATORS or text[at - 1].isspace()
    ]  # fmt: skip
