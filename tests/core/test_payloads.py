"""Encoding and decoding of payloads, and texts."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_redis_messaging.core import encoding
from django_redis_messaging.errors import LimitExceeded

pytestmark = pytest.mark.versions

texts = st.text(st.characters(exclude_categories=["Cs"]))
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
)


@settings(max_examples=30)
@given(st.lists(values))
def test_payloads_are_decoded_unchanged(given_values: list[Any]) -> None:
    raw = [encoding.dumps(value).encode() for value in given_values]
    assert encoding.loads_all(raw) == given_values


def test_numbers_beyond_53_bits_and_empty_lists_are_kept() -> None:
    value = {"n": 2**53 + 1, "big": 10**30, "list": [], "dict": {}}
    assert encoding.loads_all([encoding.dumps(value).encode()]) == [value]


def test_it_is_compact_and_readable() -> None:
    assert encoding.dumps({"a": [1, "é"]}) == '{"a":[1,"é"]}'


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", {(1, 2): 3}, [print]])
def test_types_that_json_does_not_have_raise_type_error(value: object) -> None:
    with pytest.raises(TypeError, match="data must be made of"):
        encoding.dumps(value, "data")


def circle() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def deep(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, [-math.inf], circle(), deep(100_000), deep(encoding.MAX_DEPTH + 1)],
    ids=["nan", "inf", "nested", "circle", "deep", "a little too deep"],
)
def test_values_that_json_cannot_encode_raise_value_error(value: object) -> None:
    with pytest.raises(ValueError, match="data"):
        encoding.dumps(value, "data")


def test_keys_that_json_would_change_are_rejected() -> None:
    """A number as a key would be decoded as a str."""
    with pytest.raises(TypeError, match="data"):
        encoding.dumps({1: "a"}, "data")


def test_a_lone_surrogate_is_rejected() -> None:
    with pytest.raises(ValueError, match="surrogate"):
        encoding.dumps({"a": "\ud800"}, "data")


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


def test_any_parser_reads_our_json() -> None:
    assert json.loads(encoding.dumps({"a": None})) == {"a": None}
