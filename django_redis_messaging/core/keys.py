"""Validates names and encodes them for keys."""

from __future__ import annotations

import functools
import re

from .. import conf
from ..errors import InvalidArgument

#: version of the key layout
FORMAT = 1
#: bytes of UTF-8
MAX_NAME_BYTES = 255

#: characters that are percent-encoded inside a key
UNSAFE = re.compile(r"[\s\x00-\x1f\x7f-\x9f{}%:]")
# Braces would change the hash tag; the others are special in the patterns of ACLs and SCAN.
_INVALID_IN_PREFIX = re.compile(r"[\s\x00-\x1f\x7f-\x9f{}*?\[\]\\]")


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


def name(value: str, what: str) -> str:
    """Return `value` if it is a valid name: a str of 1 to 255 bytes of UTF-8, without NUL.

    >>> name("ann", "user")
    'ann'
    """
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {type(value).__name__}.")
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
