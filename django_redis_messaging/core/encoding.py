"""How names and values are stored.

Names are validated, and encoded for keys. Payloads are JSON only, so any program can read what Redis holds.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from functools import partial
from json.encoder import encode_basestring
from typing import Any

from .. import conf
from ..errors import InvalidArgument, LimitExceeded

#: version of the key layout
FORMAT = 2
#: bytes of UTF-8
MAX_NAME_BYTES = 255

#: characters that are percent-encoded inside a key
UNSAFE = re.compile(r"[\s\x00-\x1f\x7f-\x9f{}%:]")
# Braces would change the hash tag; the others are special in the patterns of ACLs and SCAN.
_INVALID_IN_PREFIX = re.compile(r"[\s\x00-\x1f\x7f-\x9f{}*?\[\]\\]")
#: levels of nested lists and dicts
MAX_DEPTH = 100
#: the types that a payload may contain
TYPE_NAMES = "None, bool, int, float, str, and lists and str-keyed dicts of these"

_make_encoder = partial(json.JSONEncoder, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_encode = _make_encoder().encode
_encode_sorted = _make_encoder(sort_keys=True).encode


@functools.lru_cache
def checked_prefix(value: str) -> str:
    """Return `value` if it is a valid key prefix: a name without whitespace, braces and pattern characters.

    >>> checked_prefix("site:shop-7")
    'site:shop-7'
    """
    invalid = _INVALID_IN_PREFIX.search(name(value, "PREFIX"))
    if invalid:
        raise InvalidArgument(f"PREFIX contains {invalid[0]!r}: use letters, digits, '-', '_', '.' and ':'.")
    return value


def current_prefix() -> str:
    """The PREFIX of the settings, checked. It is read anew each time: it may be a callable (tenants)."""
    return checked_prefix(conf.prefix())


def name(value: str, what: str, convert: Callable[[Any, str], str] | None = None) -> str:
    """Return `value` if it is a valid name: a str of 1 to 255 bytes of UTF-8, without NUL. `convert` makes
    the name of any other value.

    >>> name("ann", "user")
    'ann'
    """
    if not issubclass(type(value), str):  # isinstance() would load a lazy object
        if convert is None:
            raise TypeError(f"{what} must be a str, not {type(value).__name__}.")
        value = convert(value, what)
    if not value:
        raise InvalidArgument(f"{what} is empty; it must have 1 to {MAX_NAME_BYTES} bytes of UTF-8.")
    if "\0" in value:
        raise InvalidArgument(f"{what} has a NUL character, which is not allowed.")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} has a lone surrogate, which UTF-8 can't encode: remove it.") from None
    if size > MAX_NAME_BYTES:
        raise InvalidArgument(f"{what} has {size} bytes of UTF-8; the maximum is {MAX_NAME_BYTES}.")
    return value


def encoded(value: str) -> str:
    """Encode a valid name for use inside a key.

    >>> encoded("a:{b} c")
    'a%3A%7Bb%7D%20c'
    """
    if not UNSAFE.search(value):
        return value
    return UNSAFE.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), value)


def tag(prefix: str, kind: str, value: str) -> str:
    """The common beginning of all keys of one resource, which contains their hash tag."""
    return f"{prefix}:{FORMAT}:{{{kind}:{encoded(value)}}}"


def printable(text: str) -> str:
    """A name as one line, for a terminal or an operator: control characters are escaped.

    >>> printable("a\\x1b[31m")
    'a\\\\x1b[31m'
    """
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


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
