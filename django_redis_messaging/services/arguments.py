"""Checks of arguments that several services take."""

from __future__ import annotations

from datetime import datetime

#: more than this is never asked of one script
MOST = 1000


def count(value: int, what: str, *, most: int = MOST) -> int:
    """How many are wanted: 1 to `most`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} must be an int, not {type(value).__name__}.")
    if not 1 <= value <= most:
        raise ValueError(f"{what} is {value}: it can be 1 to {most}.")
    return value


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
