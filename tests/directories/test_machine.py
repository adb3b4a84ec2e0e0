"""Directories and contacts equal a brute-force search, after any changes and for texts that fold in unusual
ways."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pypinyin.constants import PINYIN_DICT

from django_redis_messaging import Contact, Directory, RecentContacts
from django_redis_messaging.services.directories.folding import all_suffixes

from ..support.missing_packages import without_pypinyin

Spell = Callable[[str], list[str]]
numbers = itertools.count()


def fold(text: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def word_starts(text: str) -> list[int]:
    return [at for at in range(len(text)) if at == 0 or text[at - 1].isspace() or text[at - 1] in "-_.@"]


def unspelled(text: str) -> list[str]:
    return []


def brute_force(
    held: dict[str, list[str]], prefix: str, limit: int, spell: Spell = unspelled
) -> list[Contact]:
    """Brute-force search; `held` maps members to label and aliases, `spell` texts to spellings."""
    best = []
    for member, texts in held.items():
        folded = [fold(text) for text in texts]
        rests = [text[at:] for text in folded for at in word_starts(text)]
        rests += [rest for text in folded for rest in spell(text)]
        matching = [rest for rest in rests if rest.startswith(fold(prefix))]
        if matching:
            best.append((min(matching), member))
    return [Contact(member, held[member][0]) for _, member in sorted(best)[:limit]]


def readings(character: str) -> list[str]:
    """The readings of a character, from the data with tones."""
    with_tones = unicodedata.normalize("NFD", PINYIN_DICT.get(ord(character), "")).split(",")
    without = {
        "".join(c for c in text if c.isascii() or c == "\u0308")
        for text in with_tones
        if text and "\u0302" not in text  # "ê"
    }
    return sorted({text.replace("u\u0308", u) for text in without for u in ("v", "yu", "u")})


def spell(text: str) -> list[str]:
    """All spellings of a text."""
    known = {at: read for at, character in enumerate(text) if (read := readings(character))}
    spelled = []
    for start in {*known, *word_starts(text)}:
        places = [at for at in known if at >= start]
        for choice in itertools.product(*(known[at] for at in places)) if places else ():
            chosen = dict(zip(places, choice, strict=True))
            forms = [chosen]
            if len(places) > 1:
                forms.append({at: reading[0] for at, reading in chosen.items()})
            if {start, start + 1} <= {*known} and start - 1 not in known:
                forms.append({**chosen, start: chosen[start] + " "})
            spelled += ["".join(form.get(at, text[at]) for at in range(start, len(text))) for form in forms]
    return spelled


def is_spelled_in_full(text: str) -> bool:
    """Whether a text has so few spellings that none is left out."""
    combinations = itertools.product(*(read for character in text if (read := readings(character))))
    return len(list(combinations)) <= 12 and len(set(spell(text))) <= 60


# Texts that fold in unusual ways, and characters with a meaning for this app or for Redis.
PIECES = [
    "a", "b", "A", "B", "ab", " ", "  ", "-", "_", ".", "@", "{", "}", "`", ":", "%", "[", "(", "\xff",
    "ß", "ẞ", "ss", "İ", "i\u0307", "I", "\u0131", "Σ", "ς", "é", "e\u0301", "\u0301", "ﬁ", "ﷺ", "\xb4", "…",
    "\u212b", "Å", "한", "하", "\u1112", "中", "文", "ｱ", "ア", "😀", "👩\u200d🚀", "\u200b", "\u3000",
    "\x7f", "\u2028", "\x85", "\x1f", "ǰ", "j", "ᾳ", "\U0001d49c", "\U0010ffff", "\ue000", "\uffff",
]  # fmt: skip
texts = st.one_of(
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=8).map("".join),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8),
)
CHINESE = [*"王小明重庆单吕曾陈欸", "A", "b", " ", "-", "\u3000", "𠮷", "あ", "\uf9dc", "\u3007"]
names = st.lists(st.sampled_from(CHINESE), min_size=1, max_size=5).map("".join)
short_names = names.filter(lambda text: is_spelled_in_full(fold(text)))
members = st.sampled_from(["u1", "u2", "u3", "ü", "{", "`"])


def changes(texts: st.SearchStrategy[str]) -> st.SearchStrategy[list[Any]]:
    """Changes of a directory, with these labels and aliases."""
    return st.lists(
        st.one_of(
            st.tuples(st.just("add"), members, texts, st.lists(texts, max_size=2)),
            st.tuples(st.just("remove"), members),
            st.tuples(st.just("many"), st.lists(st.tuples(members, texts), max_size=5)),
        ),
        max_size=8,
    )


def beginnings(held: dict[str, list[str]], spell: Spell) -> st.SearchStrategy[str]:
    """Prefixes that a user could type to find an existing member."""
    labels = [text for several in held.values() for text in several] or ["a"]
    known = labels + [rest for text in labels for rest in spell(fold(text))]
    spans = st.tuples(st.sampled_from(known), st.integers(0, 8), st.integers(1, 8))
    return spans.map(lambda span: span[0][span[1] : span[1] + span[2]])


def compare_with_brute_force(
    steps: list[Any], data: st.DataObject, texts: st.SearchStrategy[str], spell: Spell = unspelled
) -> None:
    directory = Directory(f"guild-{next(numbers)}")
    held: dict[str, list[str]] = {}
    for verb, *arguments in steps:
        if verb == "add":
            member, label, aliases = arguments
            directory.add(member, label, aliases=aliases)
            held[member] = [label, *aliases]
        elif verb == "remove":
            directory.remove(arguments[0])
            held.pop(arguments[0], None)
        else:
            assert directory.add_many(pair for pair in arguments[0]) == len(arguments[0])
            held.update((member, [label]) for member, label in arguments[0])
        for prefix in ["", data.draw(st.one_of(texts, beginnings(held, spell)), label="prefix")]:
            limit = data.draw(st.integers(1, 4), label="limit")
            assert directory.suggest(prefix, limit) == brute_force(held, prefix, limit, spell)
    assert directory.size() == len(held)


quick = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(changes(texts), st.data())
@settings(quick, max_examples=150)
def test_directories(steps: list[Any], data: st.DataObject) -> None:
    with without_pypinyin():
        compare_with_brute_force(steps, data, texts)


@given(changes(short_names), st.data())
@settings(quick, max_examples=40)
def test_directories_with_chinese_labels(steps: list[Any], data: st.DataObject) -> None:
    compare_with_brute_force(steps, data, short_names, spell)


@given(short_names)
@settings(quick, max_examples=200)
def test_labels_have_all_spellings(label: str) -> None:
    folded = fold(label)
    assert {*all_suffixes([label])} == {*(folded[at:] for at in word_starts(folded)), *spell(folded)}


uses = st.lists(
    st.tuples(st.sampled_from(["touch"] * 4 + ["remove"]), st.sampled_from("abcdefg")), max_size=40
)


@given(uses, st.integers(1, 5), st.sampled_from(["recent", "frequency"]))
@settings(quick, max_examples=60)
def test_recent_contacts(steps: list[tuple[str, str]], size: int, order: Any) -> None:
    recent = RecentContacts(f"user-{next(numbers)}", size=size, order=order)
    counts: dict[str, int] = {}  # oldest use first
    for verb, contact in steps:
        before = counts.pop(contact, 0)
        getattr(recent, verb)(contact)
        if verb == "touch":
            if len(counts) == size:
                del counts[next(iter(counts)) if order == "recent" else min(counts, key=counts.__getitem__)]
            counts[contact] = before + 1
    expected = list(reversed(counts))
    if order == "frequency":
        expected.sort(key=counts.__getitem__, reverse=True)
    assert recent.list() == expected
