"""Limits of directories and recent contacts, and arguments that are refused before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pytest_django import Settings

from django_redis_messaging import Directory, LimitExceeded, RecentContacts

from ..support.directories import found, keys_of
from ..support.server import all_keys, change, server

Case = tuple[Callable[[], object], type[Exception], str]
SIZES = [
    (0, ValueError),
    (1001, ValueError),
    (-1, ValueError),
    (True, TypeError),
    (1.0, TypeError),
    ("5", TypeError),
]
NAMES = [
    ("", ValueError), ("a\0b", ValueError), ("a\ud800", ValueError), ("é" * 128, ValueError),
    (7, TypeError), (None, TypeError), (b"u1", TypeError),
]  # fmt: skip
LABELS = [
    ("", ValueError), ("a\0b", ValueError), ("a\udfff", ValueError), ("é" * 128, LimitExceeded),
    (None, TypeError), (b"Ann", TypeError), (7, TypeError),
]  # fmt: skip
PREFIXES = [(None, TypeError), (b"a", TypeError), ("a\0", ValueError), ("\udfff", ValueError)]
PAIRS = ["ab", ("u1",), ("u1", "Ann", "x"), None, 7, {"u1": "Ann", "u2": "Bob"}]


class TestBadInput:
    def check(self, cases: list[Case]) -> None:
        for call, error, text in cases:
            with pytest.raises(error, match=text):
                call()
        assert all_keys() == []

    @pytest.mark.parametrize(("name", "error"), NAMES)
    def test_names(self, name: Any, error: type[Exception]) -> None:
        staff, recent = Directory("staff"), RecentContacts("ann")
        self.check(
            [
                (lambda: Directory(name), error, "guild"),
                (lambda: staff.add(name, "Ann"), error, "member"),
                (lambda: staff.remove(name), error, "member"),
                (lambda: staff.add_many([(name, "Ann")]), error, "member"),
                (lambda: RecentContacts(name), error, "user"),
                (lambda: recent.touch(name), error, "contact"),
                (lambda: recent.remove(name), error, "contact"),
            ]
        )

    @pytest.mark.parametrize(("label", "error"), LABELS)
    def test_labels_and_aliases(self, label: Any, error: type[Exception]) -> None:
        staff = Directory("staff")
        self.check(
            [
                (lambda: staff.add("u1", label), error, "label"),
                (lambda: staff.add_many([("u1", label)]), error, "label"),
                (lambda: staff.add("u1", "Ann", aliases=["Annie", label]), error, "alias"),
                (lambda: staff.add("u1", "Ann", aliases="Annie"), TypeError, "aliases"),
            ]
        )

    @pytest.mark.parametrize("pair", PAIRS)
    def test_pairs(self, pair: Any) -> None:
        self.check([(lambda: Directory("staff").add_many([pair]), TypeError, "pairs")])

    @pytest.mark.parametrize(("prefix", "error"), PREFIXES)
    def test_prefixes(self, prefix: Any, error: type[Exception]) -> None:
        with pytest.raises(error, match="prefix"):
            Directory("staff").suggest(prefix)
        if prefix != "a\0":  # contacts are compared in this process
            with pytest.raises(error, match="prefix"):
                RecentContacts("ann").suggest(prefix)

    @pytest.mark.parametrize(("number", "error"), SIZES)
    def test_numbers(self, number: Any, error: type[Exception]) -> None:
        self.check(
            [
                (lambda: RecentContacts("ann", size=number), error, "size"),
                (lambda: RecentContacts("ann").suggest("a", limit=number), error, "limit"),
                (lambda: Directory("staff").suggest("a", limit=number), error, "limit"),
            ]
        )

    def test_order(self) -> None:
        with pytest.raises(ValueError, match="order"):
            RecentContacts("ann", order="alphabet")  # type: ignore[arg-type]

    def test_long_prefixes(self) -> None:
        assert found(Directory("staff"), "\ufdfa" * 1000) == []
        for suggest in (Directory("staff").suggest, RecentContacts("ann").suggest):
            with pytest.raises(ValueError, match="at most 1000 characters, not 1001"):
                suggest("x" * 1001)


class TestLimits:
    def test_too_many_word_starts(self) -> None:
        staff = Directory("staff")
        staff.add("u1", "-" * 128)
        aliases = [" ".join(["a"] * 49) + f" a{number}" for number in range(3)]
        for label, more in [("-" * 129, []), ("a", aliases), ("…" * 50, [])]:
            with pytest.raises(LimitExceeded, match="word starts") as caught:
                staff.add("u2", label, aliases=more)
            assert caught.value.limit == 128 < caught.value.actual
        with pytest.raises(LimitExceeded, match="word starts"):
            staff.add_many([("u2", "-" * 129)])
        assert staff.size() == 1

    def test_too_long_folded_texts(self) -> None:
        staff = Directory("staff")
        # 35 characters of 3 bytes each fold to 61,845 bytes after all word starts together
        aliases = [letter * 255 for letter in "abcdefghijklmn"]
        staff.add("u1", "ﷺ" * 35, aliases=[*aliases, "o" * 121])
        with pytest.raises(LimitExceeded, match=r"\(bytes\)") as caught:
            staff.add("u2", "ﷺ" * 35, aliases=[*aliases, "o" * 122])
        assert (caught.value.limit, caught.value.actual) == (65536, 65537)
        assert staff.size() == 1

    def test_full_directory_accepts_only_replacements(self, settings: Settings) -> None:
        change(settings, DIRECTORY_MAX_ENTRIES=4)
        staff = Directory("staff")
        staff.add("u1", "Ann Lee")
        with pytest.raises(LimitExceeded) as caught:
            staff.add_many([("u2", "Bob"), ("u1", "Cleo Lee"), ("u3", "Dan Day")])
        assert (caught.value.limit, caught.value.actual) == (4, 5)
        assert (found(staff, ""), staff.size()) == (["u1"], 1)
        staff.add_many([("u2", "Bob Bee")])
        staff.add("u1", "Eve Ede")
        assert found(staff, "") == ["u2", "u1"]
        change(settings, DIRECTORY_MAX_ENTRIES=1)
        staff.add("u1", "Fay")
        assert found(staff, "f") == ["u1"]

    def test_label_limit_is_a_setting(self, settings: Settings) -> None:
        change(settings, LABEL_MAX_BYTES=3)
        Directory("staff").add("u1", "Ann")
        with pytest.raises(LimitExceeded, match="4 is over the limit of 3"):
            Directory("staff").add("u1", "Anna")


class TestSpellings:
    """Chinese labels have a limited number of spellings."""

    @pytest.mark.parametrize(
        ("label", "aliases", "most", "prefix"),
        [
            ("单" * 85, [], 65, "dandandan"),
            ("单" * 85, ["曾" * 85, "重" * 85], 128, "cc"),
            ("-" * 127 + "单", [], 128, "-"),
            ("重单曾重单曾" * 3, [], 65, "chongdan"),
            ("北京市朝阳区人力资源部 王小明", [], 66, "wangxiaoming"),
        ],
        ids=["long", "long aliases", "many words", "many readings", "names and words"],
    )
    def test_their_number(self, label: str, aliases: list[str], most: int, prefix: str) -> None:
        staff = Directory("staff")
        staff.add("u1", label, aliases=aliases)
        assert server().zcard(keys_of("staff")[0]) == most
        assert found(staff, label) == found(staff, prefix) == ["u1"]

    def test_too_long_ones_are_left_out(self, settings: Settings) -> None:
        change(settings, LABEL_MAX_BYTES=60_000)
        staff = Directory("staff")
        staff.add("u1", "单" * 5_000)
        assert 1 < server().zcard(keys_of("staff")[0]) < 10
        staff.add("u1", "单" * 20_000)
        assert server().zcard(keys_of("staff")[0]) == 1
        with pytest.raises(LimitExceeded, match="word starts"):
            staff.add("u1", "-" * 128 + "单")
