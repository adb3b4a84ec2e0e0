"""Reads positions in a chat and message ids from request parameters."""

from __future__ import annotations

from django.http import QueryDict
from django.utils.translation import gettext_lazy as _

from . import problems

#: the text for a cursor or id that the services refuse
INVALID_POSITION = _("This is not a valid position in the chat.")
#: digits of the longest id that is accepted
MAX_ID_DIGITS = 15


def get_position(query: QueryDict, name: str) -> str | int | None:
    """The cursor or message id in the parameter `name`, or None if it is missing or empty."""
    value = query.get(name, "")
    return parse_position(value) if value else None


def parse_position(value: str) -> str | int:
    """An id as a number; anything else as it is: the services check cursors."""
    return parse_id(value) if value.isascii() and value.isdigit() else value


def parse_id(value: str) -> int:
    """A message id. Raises the Problem for anything else."""
    if not (value.isascii() and value.isdigit() and len(value) <= MAX_ID_DIGITS):
        raise problems.invalid(_("This is not a valid message ID."))
    return int(value)
