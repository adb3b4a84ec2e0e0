"""Checks of arguments that several services take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TypeVar

T = TypeVar("T")

#: a duration: seconds, or a timedelta
Duration = float | timedelta

#: more than this is never asked of one script
MOST = 1000


def count(value: int, what: str, *, most: int = MOST) -> int:
    """How many are wanted: 1 to `most`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} must be an int, not {type(value).__name__}.")
    if not 1 <= value <= most:
        raise ValueError(f"{what} is {value}: it can be 1 to {most}.")
    return value


def whole(value: int, what: str, *, least: int, most: int) -> int:
    """A whole number from `least` to `most`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} must be an int, not {type(value).__name__}.")
    if not least <= value <= most:
        raise ValueError(f"{what} is {value}: it can be {least} to {most}.")
    return value


def listed(items: Sequence[T], what: str) -> Sequence[T]:
    """Several things: a str is one."""
    if isinstance(items, str):
        raise TypeError(f"{what} must be a list, not one str: put it in a list.")
    return items


#: ms: a duration is at most a hundred years, so that no moment leaves the range of exact numbers
LONGEST = 100 * 366 * 86_400_000


def milliseconds(value: Duration, what: str, *, least: int = 0) -> int:
    """A duration in ms, rounded up; at least `least` ms."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{what} must be seconds or a timedelta, not {type(value).__name__}.")
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{what} is {value} s: give 0 or more.")
    # a float such as 0.1 is a little more than it says
    ms = math.ceil(round(value * 1000, 6))
    if not least <= ms <= LONGEST:
        raise ValueError(f"{what} is {value} s: it can be {least / 1000:g} s to a hundred years.")
    return ms


def flag(value: bool, what: str) -> int:
    """Yes or no, as scripts take it: 1 or 0."""
    if not isinstance(value, bool):
        raise TypeError(f"{what} must be True or False, not {type(value).__name__}.")
    return int(value)


def until_ms(value: datetime | None, what: str) -> int:
    """A moment in ms; 0 for None."""
    if value is None:
        return 0
    if not isinstance(value, datetime):
        raise TypeError(f"{what} must be an aware datetime or None, not {type(value).__name__}.")
    if value.tzinfo is None:
        raise ValueError(f"{what} is naive: give it a time zone, as django.utils.timezone.now() has.")
    return int(value.timestamp() * 1000)
