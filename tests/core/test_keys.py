"""Names and keys."""

from __future__ import annotations

import functools
import importlib
import itertools
import pkgutil
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from django_redis_messaging import services
from django_redis_messaging.core import encoding
from django_redis_messaging.services.jobs.keys import JobKeys, QueueKeys
from django_redis_messaging.services.locks.lock import LockKeys, checked_lock_key, lock_key

#: any valid name, preferably with characters that are special in keys
names = st.text(
    st.one_of(st.sampled_from("{}%:\\ \t\n*?[]`a1é☃"), st.characters(exclude_categories=["Cs"])), min_size=1
).filter(lambda text: "\0" not in text and len(text.encode()) <= encoding.MAX_NAME_BYTES)


class TestNames:
    @given(names)
    def test_valid_names_are_returned_unchanged(self, value: str) -> None:
        assert encoding.name(value, "user") == value

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


class TestEncoding:
    @given(names)
    def test_encoding_is_reversible(self, value: str) -> None:
        assert unquote(encoding.encoded(value), errors="strict") == value

    @given(names)
    def test_no_special_character_is_left(self, value: str) -> None:
        encoded = encoding.encoded(value)
        assert not set(encoded) & set("{}: \t\n\r\x85\xa0\u2028")
        assert encoded.isprintable() or not value.isprintable()

    @given(names, names)
    def test_two_names_have_different_encodings(self, one: str, other: str) -> None:
        assert (encoding.encoded(one) == encoding.encoded(other)) == (one == other)

    def test_encoded_names_have_different_encodings(self) -> None:
        lookalikes = ["%", "%25", "%2525", "a:b", "a%3Ab", "{", "%7B", " ", "%20"]
        assert len({encoding.encoded(name) for name in lookalikes}) == len(lookalikes)


def builders() -> list[type]:
    """The classes that build the keys of one resource: each is in the package of its service."""
    names = [one.name for one in pkgutil.walk_packages(services.__path__, f"{services.__name__}.")]
    found = {
        kind
        for module in map(importlib.import_module, names)
        for name, kind in vars(module).items()
        if name.endswith("Keys")
    }
    return sorted(found, key=lambda kind: kind.__name__)


def built(prefix: str, kind: type, name: str) -> list[str]:
    """All keys of a resource."""
    made = _made(prefix, kind, name)
    found: list[str] = []
    for attribute, member in vars(kind).items():
        if isinstance(member, property | functools.cached_property):
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
    return kind(prefix, name)


class TestKeys:
    def test_there_are_builders(self) -> None:
        assert {"BroadcastKeys", "ChatKeys", "QueueKeys", "UserKeys"} <= {
            kind.__name__ for kind in builders()
        }

    @pytest.mark.parametrize("kind", builders())
    @given(name=names)
    def test_the_keys_of_a_resource_share_a_slot_and_a_pattern(self, kind: type, name: str) -> None:
        found = built("site", kind, name)
        assert len({key_slot(key.encode()) for key in found}) == 1
        assert all(key.startswith("site:1:{") for key in found)
        assert all(key.count("{") == key.count("}") == 1 for key in found)

    @given(names, names)
    def test_all_keys_differ(self, one: str, other: str) -> None:
        resources = [(kind, name) for kind in builders() for name in sorted({one, other})]
        every = list(itertools.chain(*(built("site", kind, name) for kind, name in resources)))
        assert len(every) == len(set(every))

    @pytest.mark.parametrize("kind", builders())
    def test_each_key_has_its_schema_as_docstring(self, kind: type) -> None:
        for attribute, member in vars(kind).items():
            if isinstance(member, property | functools.cached_property):
                assert member.__doc__, f"{kind.__name__}.{attribute}"


class TestLocksOfOthers:
    @given(names)
    def test_the_other_keys_of_a_lock_share_its_slot_and_have_our_prefix(self, key: str) -> None:
        try:
            checked_lock_key(key)
        except ValueError:
            assert "}" in key
            return
        made = LockKeys("site", key)
        assert {key_slot(one.encode()) for one in made.with_ring} == {key_slot(key.encode())}
        assert all(one.startswith("site:1:{") for one in made.with_ring[1:])

    @given(names, names)
    def test_two_lock_keys_have_no_key_in_common(self, one: str, other: str) -> None:
        first, second = (LockKeys("site", key) for key in (one, other))
        assert (first.fence == second.fence) == (one == other)


class TestPrefixes:
    @pytest.mark.parametrize("value", ["messaging", "site:shop-7", "a.b_c", "été"])
    def test_valid(self, value: str) -> None:
        assert encoding.checked_prefix(value) == value

    @pytest.mark.parametrize("value", ["", "a{", "}", "a b", "a\n", "\x7f", "a*", "a?", "[a]", "a\\b", "\0"])
    def test_invalid(self, value: str) -> None:
        with pytest.raises(ValueError, match="PREFIX"):
            encoding.checked_prefix(value)
