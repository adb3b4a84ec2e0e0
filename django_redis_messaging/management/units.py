"""Sizes and durations as text, for commands."""

from __future__ import annotations

import re

#: bytes of a unit
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMG]?)(?:i?B)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """The bytes of a size: a number with an optional unit K, M or G. Raises ValueError.

    >>> parse_size("64M"), parse_size("1.5 GiB"), parse_size("100")
    (67108864, 1610612736, 100)
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size: write bytes, or a number with K, M or G, such as 64M.")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def format_count(number: int, what: str) -> str:
    """A number of things as text.

    >>> format_count(1, "file"), format_count(25_000, "line")
    ('1 file', '25,000 lines')
    """
    return f"1 {what}" if number == 1 else f"{number:,} {what}s"


def format_share(done: int, total: int) -> str:
    """A part of a number of bytes as text, in the unit of the whole.

    >>> format_share(0, 5), format_share(1_000_000, 2_500_000)
    ('0 of 5 B', '1.0 of 2.4 MiB')
    """
    size, divisor, unit = _scaled(total)
    digits = 0 if divisor == 1 else 1
    return f"{done / divisor:.{digits}f} of {size:.{digits}f} {unit}"


def format_size(size: float) -> str:
    """A number of bytes as text.

    >>> format_size(0), format_size(1023), format_size(2_500_000), format_size(3 << 40)
    ('0 B', '1023 B', '2.4 MiB', '3072.0 GiB')
    """
    scaled, divisor, unit = _scaled(size)
    return f"{scaled:.{0 if divisor == 1 else 1}f} {unit}"


def _scaled(size: float) -> tuple[float, int, str]:
    """The size in a unit in which it has at most four digits, the bytes of the unit, and its name."""
    exponent = next((at for at in range(3) if size < 1024 ** (at + 1)), 3)
    divisor = 1024**exponent
    return size / divisor, divisor, ("B", "KiB", "MiB", "GiB")[exponent]


def format_duration(seconds: float) -> str:
    """A duration as text.

    >>> format_duration(7.6), format_duration(75), format_duration(3700)
    ('0:08', '1:15', '1:01:40')
    """
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
