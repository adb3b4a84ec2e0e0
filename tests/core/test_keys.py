"""Keys, and what is stored in them: names, payloads and texts."""

from __future__ import annotations

import functools
import importlib
import itertools
import json
import math
import pkgutil
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.crc import key_slot

from django_redis_messaging import LimitExceeded, services
from django_redis_messaging.core import encoding
from django_redis_messaging.services.history.keys import HistoryKeys
from django_redis_messaging.services.jobs.keys import JobKeys, QueueKeys
from django_redis_messaging.services.locks.lock import LockKeys, checked_lock_key, lock_key
from django_redis_messaging.services.rates.rate_limit import RateKeys

#: any valid name, preferably with characters that are special in keys
names = st.text(
    st.one_of(st.sampled_from("{}%:\\ \t\n*?[]`a1é☃"), st.characters(exclude_categories=["Cs"])), min_size=1
).filter(lambda text: "\0" not in text and len(text.encode()) <= encoding.MAX_NAME_BYTES)
few = settings(max_examples=50)


class TestNames:
    @few
    @given(names, names)
    def test_encoding(self, one: str, other: str) -> None:
        """It is reversible, leaves no special character, and differs for two names."""
        assert encoding.name(one, "user") == one
        encoded = encoding.encoded(one)
        assert unquote(encoded, errors="strict") == one
        assert not set(encoded) & set("{}: \t\n\r\x85\xa0\u2028")
        assert encoded.isprintable() or not one.isprintable()
        assert (encoded == encoding.encoded(other)) == (one == other)

    def test_encoded_names_have_different_encodings(self) -> None:
        lookalikes = ["%", "%25", "%2525", "a:b", "a%3Ab", "{", "%7B", " ", "%20"]
        assert len({encoding.encoded(name) for name in lookalikes}) == len(lookalikes)

    @pytest.mark.parametrize("value", ["a" * 255, "é" * 127, "☃" * 85, "😀" * 63])
    def test_up_to_255_bytes(self, value: str) -> None:
        assert encoding.name(value, "user") == value

    @pytest.mark.parametrize(
        ("value", "problem"),
        [
            ("", "empty"),
            ("a\0b", "NUL"),
            ("\ud800", "surrogate"),
            ("a\udfff", "surrogate"),
            ("a" * 256, "256 bytes"),
            ("é" * 128, "256 bytes"),
        ],
    )
    def test_invalid_names_are_rejected(self, value: str, problem: str) -> None:
        with pytest.raises(ValueError, match=f"chat_id .*{problem}"):
            encoding.name(value, "chat_id")

    @pytest.mark.parametrize("value", [None, 1, b"ann", ["ann"]])
    def test_another_type_is_a_type_error(self, value: object) -> None:
        with pytest.raises(TypeError, match="user must be a str"):
            encoding.name(value, "user")  # type: ignore[arg-type]

    @pytest.mark.parametrize("value", ["messaging", "site:shop-7", "a.b_c", "été"])
    def test_valid_prefixes(self, value: str) -> None:
        assert encoding.checked_prefix(value) == value

    @pytest.mark.parametrize("value", ["", "a{", "}", "a b", "a\n", "\x7f", "a*", "a?", "[a]", "a\\b", "\0"])
    def test_invalid_prefixes(self, value: str) -> None:
        with pytest.raises(ValueError, match="PREFIX"):
            encoding.checked_prefix(value)


def builders() -> list[type]:
    """The classes that build the keys of one resource: each is in the package of its service."""
    names = [one.name for one in pkgutil.walk_packages(services.__path__, f"{services.__name__}.")]
    found = {
        kind
        for module in map(importlib.import_module, names)
        for name, kind in vars(module).items()
        if name.endswith("Keys") and kind is not HistoryKeys  # there is one history for each prefix
    }
    return sorted(found, key=lambda kind: kind.__name__)


BUILDERS = builders()


def properties(kind: type) -> dict[str, Any]:
    kinds = property | functools.cached_property
    return {name: member for name, member in vars(kind).items() if isinstance(member, kinds)}


def built(prefix: str, kind: type, name: str) -> list[str]:
    """All keys of a resource."""
    made = _made(prefix, kind, name)
    found: list[str] = []
    for attribute in properties(kind):
        value = getattr(made, attribute)
        found += [value] if isinstance(value, str) else list(value)
    return list(dict.fromkeys(found))


def _made(prefix: str, kind: type, name: str) -> object:
    if kind is JobKeys:
        return JobKeys(prefix, "tasks", name)
    if kind is QueueKeys:
        return JobKeys(prefix, "tasks", name).queue(name)
    if kind is LockKeys:
        return LockKeys(prefix, lock_key(prefix, name))
    if kind is RateKeys:
        return RateKeys(prefix, "login", name, 60_000)
    return kind(prefix, name)


class TestKeys:
    def test_there_are_builders(self) -> None:
        names = {kind.__name__ for kind in BUILDERS}
        assert {"BroadcastKeys", "ChatKeys", "QueueKeys", "UserKeys"} <= names

    @few
    @given(names, names)
    def test_those_of_a_resource_share_a_slot_and_a_pattern_and_all_differ(
        self, one: str, other: str
    ) -> None:
        every: list[str] = []
        for kind, name in itertools.product(BUILDERS, sorted({one, other})):
            found = built("site", kind, name)
            assert len({key_slot(key.encode()) for key in found}) == 1
            assert all(key.startswith(f"site:{encoding.FORMAT}:{{") for key in found)
            assert all(key.count("{") == key.count("}") == 1 for key in found)
            every += found
        assert len(every) == len(set(every))

    @pytest.mark.parametrize("kind", BUILDERS)
    def test_each_has_its_schema_as_docstring(self, kind: type) -> None:
        assert [name for name, member in properties(kind).items() if not member.__doc__] == []

    @few
    @given(names, names)
    def test_a_lock_on_a_key_of_the_site(self, one: str, other: str) -> None:
        """Its other keys share the slot, have our prefix, and are those of no other lock."""
        try:
            checked_lock_key(one)
        except ValueError:
            assert "}" in one
        else:
            made = LockKeys("site", one)
            assert {key_slot(key.encode()) for key in made.with_ring} == {key_slot(one.encode())}
            assert all(key.startswith(f"site:{encoding.FORMAT}:{{") for key in made.with_ring[1:])
        first, second = (LockKeys("site", key) for key in (one, other))
        assert (first.fence == second.fence) == (one == other)


texts = st.text(st.characters(exclude_categories=["Cs"]))
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
)


def circle() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def deep(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


@pytest.mark.versions
class TestPayloads:
    @settings(max_examples=20)
    @given(st.lists(values, max_size=3))
    def test_they_are_decoded_unchanged(self, given_values: list[Any]) -> None:
        raw = [encoding.dumps(value).encode() for value in given_values]
        assert encoding.loads_all(raw) == given_values

    def test_numbers_beyond_53_bits_and_empty_lists_are_kept(self) -> None:
        value = {"n": 2**53 + 1, "big": 10**30, "list": [], "dict": {}}
        assert encoding.loads_all([encoding.dumps(value).encode()]) == [value]

    def test_they_are_compact_and_readable_by_any_parser(self) -> None:
        assert encoding.dumps({"a": [1, "é"]}) == '{"a":[1,"é"]}'
        assert json.loads(encoding.dumps({"a": None})) == {"a": None}

    @pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", {(1, 2): 3}, [print]])
    def test_types_that_json_does_not_have_raise_type_error(self, value: object) -> None:
        with pytest.raises(TypeError, match="data must be made of"):
            encoding.dumps(value, "data")

    @pytest.mark.parametrize(
        "value",
        [math.nan, math.inf, [-math.inf], circle(), deep(100_000), deep(encoding.MAX_DEPTH + 1)],
        ids=["nan", "inf", "nested", "circle", "deep", "a little too deep"],
    )
    def test_values_that_json_cannot_encode_raise_value_error(self, value: object) -> None:
        with pytest.raises(ValueError, match="data"):
            encoding.dumps(value, "data")

    def test_keys_and_surrogates_that_would_change_are_rejected(self) -> None:
        """A number as a key would be decoded as a str."""
        with pytest.raises(TypeError, match="data"):
            encoding.dumps({1: "a"}, "data")
        with pytest.raises(ValueError, match="surrogate"):
            encoding.dumps({"a": "\ud800"}, "data")


@pytest.mark.versions
class TestTexts:
    def test_valid_texts(self) -> None:
        assert encoding.text("", "body") == ""
        assert encoding.text("é" * 5, "body", limit=10) == "é" * 5

    def test_too_long(self) -> None:
        with pytest.raises(LimitExceeded, match="body") as caught:
            encoding.text("é" * 6, "body", limit=10)
        assert (caught.value.limit, caught.value.actual) == (10, 12)

    def test_not_utf8(self) -> None:
        with pytest.raises(ValueError, match="surrogate"):
            encoding.text("\ud800", "body")

    @pytest.mark.parametrize("value", [None, 1, b"x"])
    def test_not_a_str(self, value: object) -> None:
        with pytest.raises(TypeError, match="body must be a str"):
            encoding.text(value, "body")  # type: ignore[arg-type]
