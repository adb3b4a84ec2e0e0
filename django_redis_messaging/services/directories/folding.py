"""How names are matched: folded, from the start of each word; Chinese names also by their pinyin.

Texts are folded by NFKC, casefold, NFKC, so that "Straße" equals "STRASSE", "ﬁ" equals "fi", and "é" as one
character equals "é" as two. A prefix matches a text if the folded text, from the start of one of its words,
begins with the folded prefix, code point by code point. So "e" does not match "é", which is one code point
when folded; and a half-typed syllable ("하" on the way to "한") matches only texts that begin with it as
typed.

A folded text is spelled in pinyin from each of its Chinese characters and word starts, so that "王小明" gives
"wangxiaoming", "xiaoming" and "ming". Only Chinese characters are replaced: "王bob" gives "wangbob". There
are three forms: joined; as names are written, with a space after the first of several adjacent characters
("wang xiaoming"); and the initials of two or more characters ("wxm", "xm"). Characters with several readings
give one spelling for each combination, up to a limit.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice, product, zip_longest
from unicodedata import normalize

#: word starts of a member's label and aliases together
MAX_WORD_STARTS = 128
#: bytes of a member's suffixes together: some characters are several times as long when folded
MAX_SUFFIX_BYTES = 64 * 1024
#: a word starts after one of these, or after white space
_SEPARATORS = frozenset("-_.@")

#: spellings of one text: about what a name of three characters with three readings each has
MAX_SPELLINGS = 64
#: starts from which a text is spelled, the first ones
MAX_STARTS = 32
#: combinations of readings, for each form from each start
MAX_COMBINATIONS = 16

_CHINESE = re.compile("[\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af]")

#: what a character is replaced by: one of its readings, or itself
_Unit = tuple[str, ...]


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


def spellings(folded: str, word_starts: Iterable[int]) -> list[str]:
    """The spellings of a folded text; none without Chinese characters, or without pypinyin.

    >>> spellings("陈晨", [0])
    ['chenchen', 'cc', 'chen chen', 'chen']

    If they are too many, the first spellings from each start precede the second ones, and so on.
    """
    if not _CHINESE.search(folded):
        return []
    known = [readings(character) if _CHINESE.match(character) else () for character in folded]
    starts = sorted({*word_starts, *(at for at, found in enumerate(known) if found)})
    forms = [form for start in starts[:MAX_STARTS] for form in _forms(folded, known, start)]
    in_turn = (text for turn in zip_longest(*forms) for text in turn if text is not None)
    return list(islice(_unique(in_turn), MAX_SPELLINGS))


@lru_cache(maxsize=8192)
def readings(character: str) -> _Unit:
    """The readings of a Chinese character without tones, as they are typed: "ü" as "v", "yu" and "u".

    >>> readings("单"), readings("吕")
    (('dan', 'chan', 'shan'), ('lv', 'lyu', 'lu'))

    Importing pypinyin takes 0.2 s and 55 MB, so it is imported for the first Chinese character.
    """
    try:
        from pypinyin import Style, pinyin
    except ImportError:
        return ()
    found = pinyin(character, style=Style.NORMAL, heteronym=True)[0]
    typed = [
        reading.replace("v", u) for reading in found for u in (("v", "yu", "u") if "v" in reading else "v")
    ]
    # pypinyin returns a character without readings unchanged, and "ê" as one of the readings of 欸
    return tuple(dict.fromkeys(reading for reading in typed if reading.isascii()))


def _forms(folded: str, known: Sequence[_Unit], start: int) -> Iterator[Iterator[str]]:
    """The forms of a text from `start` on; none if no character with readings follows."""
    rest, chinese = known[start:], sum(map(bool, known[start:]))
    units = [found or (character,) for found, character in zip(rest, folded[start:], strict=True)]
    if chinese:
        yield _combine(units)
    if chinese > 1:
        yield _combine([_initials(unit) for unit in units])
        if all(rest[:2]) and not (start and known[start - 1]):
            yield _combine([units[0], (" ",), *units[1:]])


@lru_cache(maxsize=8192)
def _initials(unit: _Unit) -> _Unit:
    return tuple(dict.fromkeys(text[0] for text in unit))


def _combine(units: Sequence[_Unit]) -> Iterator[str]:
    """The combinations of readings; if they are too many, only the first characters have several readings."""
    used: list[_Unit] = []
    room = MAX_COMBINATIONS
    for unit in units:
        if room == 1:
            break
        used.append(unit[:room])
        room //= len(used[-1])
    rest = "".join([unit[0] for unit in units[len(used) :]])
    for parts in product(*reversed(used)):  # the first character varies fastest
        yield "".join([*reversed(parts), rest])


def _unique(texts: Iterable[str]) -> Iterator[str]:
    seen: set[str] = set()
    for text in texts:
        if text not in seen:
            seen.add(text)
            yield text
