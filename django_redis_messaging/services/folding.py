"""How names are compared: folded, from the start of each word on.

A text is folded by NFKC, casefold, NFKC: "Straße" and "STRASSE", "ﬁ" and "fi", "é" written as one
character or as two are the same then. A prefix matches a text when the folded text, from one of its word
starts on, begins with the folded prefix, code point by code point. So "e" doesn't find "é", which is one
code point when folded; and what is typed half ("하" on the way to "한") finds what begins with it as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from unicodedata import normalize

#: after one of these a word starts, as after white space
_SEPARATORS = frozenset("-_.@")


def fold(text: str) -> str:
    """`text` as it is compared.

    >>> fold("Jo\\u0308hn STRASSE \\uff21") == fold("jöhn Straße A") == "jöhn strasse a"
    True
    """
    return normalize("NFKC", normalize("NFKC", text).casefold())


def forms(label: str) -> list[str]:
    """Each folded text under which a label is found."""
    return [fold(label)]


def rests(label: str) -> list[str]:
    """What prefixes are compared with: the rest of each form from each word start on.

    >>> rests("Ann-Lee  O.")
    ['ann-lee  o.', 'lee  o.', ' o.', 'o.']
    """
    return [form[start:] for form in forms(label) for start in _word_starts(form)]


def every_rest(labels: Iterable[str]) -> list[str]:
    """The rests of several labels, each once."""
    return list(dict.fromkeys(rest for label in labels for rest in rests(label)))


def matches(prefix: str, label: str) -> bool:
    """Whether a folded prefix finds a label."""
    return any(rest.startswith(prefix) for rest in rests(label))


def _word_starts(form: str) -> list[int]:
    return [
        at
        for at in range(len(form))
        if at == 0 or form[at - 1] in _SEPARATORS or form[at - 1].isspace()
    ]  # fmt: skip
