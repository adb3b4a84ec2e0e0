"""Encodes and decodes payloads: JSON only, so that any program can read what Redis holds."""

from __future__ import annotations

import json
from functools import partial
from json.encoder import encode_basestring
from typing import Any

from .. import conf
from ..errors import InvalidArgument, LimitExceeded

#: levels of nested lists and dicts
MAX_DEPTH = 100
#: the types that a payload may contain
TYPE_NAMES = "None, bool, int, float, str, and lists and str-keyed dicts of these"

_make_encoder = partial(json.JSONEncoder, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_encode = _make_encoder().encode
_encode_sorted = _make_encoder(sort_keys=True).encode


def dumps(value: Any, what: str = "payload", *, sort_keys: bool = False) -> str:
    """`value` as compact JSON. With `sort_keys`, equal values have the same text.

    >>> dumps({"n": 2**53 + 1, "empty": []})
    '{"n":9007199254740993,"empty":[]}'

    Raises `TypeError` for types that JSON doesn't have, `ValueError` for NaN, infinities, circular references
    and lone surrogates.
    """
    try:
        _check(value)
        encoded = _encode_sorted(value) if sort_keys else _encode(value)
        if not encoded.isascii():
            encoded.encode()  # raises for a lone surrogate
        return encoded
    except TypeError as error:
        raise TypeError(f"{what} must be made of {TYPE_NAMES}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{what} can't be written as JSON: {error}") from None


def _check(value: Any, depth: int = 0) -> None:
    """Reject keys that the encoder would convert to str, and nesting that another parser may not decode."""
    if depth > MAX_DEPTH:
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"a dict has the key {key!r}, which is not a str")
            _check(item, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            _check(item, depth + 1)


def loads_all(raw: list[bytes]) -> list[Any]:
    """Decode each item, in one call of the parser, which is twice as fast as one call for each.

    >>> loads_all([b'1', b'["a"]'])
    [1, ['a']]
    """
    return json.loads(b"[" + b",".join(raw) + b"]") if raw else []


def string(value: str) -> str:
    r"""Encode a str as JSON, several times as fast as `dumps`.

    >>> string('say "hi"')
    '"say \\"hi\\""'
    """
    return encode_basestring(value)


def text(value: str, what: str, *, setting: str = "", limit: int | None = None) -> str:
    """Return `value` if it is a str that UTF-8 can encode, of at most `limit` bytes, or as many as `setting`
    allows."""
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {type(value).__name__}.")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} has a lone surrogate, which UTF-8 can't encode: remove it.") from None
    if setting:
        limit = getattr(conf.current(), setting)
    if limit is not None and size > limit:
        raise LimitExceeded(f"{what} (bytes)", limit=limit, actual=size, setting=setting)
    return value
