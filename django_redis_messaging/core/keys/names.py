"""What names may be, and how they stand inside keys."""

from __future__ import annotations

import functools
import re

FORMAT = 1
#: bytes of UTF-8 that a name given by people may have
MAX_NAME_BYTES = 255

#: what stands percent-encoded inside a key
UNSAFE = re.compile(r"[\s\x00-\x1f\x7f-\x9f{}%:]")
# braces would move the hash tag; the others mean something in the patterns of an ACL and of SCAN
_UNFIT_IN_PREFIX = re.compile(r"[\s\x00-\x1f\x7f-\x9f{}*?\[\]\\]")


@functools.lru_cache
def checked_prefix(value: str) -> str:
    """`value` if it can begin every key: a name without spaces, braces and the signs of patterns.

    >>> checked_prefix("site:shop-7")
    'site:shop-7'
    """
    unfit = _UNFIT_IN_PREFIX.search(name(value, "PREFIX"))
    if unfit:
        raise ValueError(f"PREFIX has {unfit[0]!r}: use letters, digits, '-', '_', '.' and ':'.")
    return value


def name(value: str, what: str) -> str:
    """`value` if it can name something: str, not empty, at most 255 bytes of UTF-8, no NUL.

    >>> name("ann", "user")
    'ann'
    """
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {type(value).__name__}.")
    if not value:
        raise ValueError(f"{what} is empty: give it a name.")
    if "\0" in value:
        raise ValueError(f"{what} has a NUL character: remove it.")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{what} has a lone surrogate, which UTF-8 can't carry: remove it.") from None
    if size > MAX_NAME_BYTES:
        raise ValueError(f"{what} has {size} bytes of UTF-8: {MAX_NAME_BYTES} is the most.")
    return value


def encoded(value: str) -> str:
    """A checked name as it stands inside a key.

    >>> encoded("a:{b} c")
    'a%3A%7Bb%7D%20c'
    """
    if not UNSAFE.search(value):
        return value
    return UNSAFE.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), value)


def tag(prefix: str, kind: str, value: str) -> str:
    """The part all keys of one resource begin with, which is also their hash tag."""
    return f"{prefix}:{FORMAT}:{{{kind}:{encoded(value)}}}"
