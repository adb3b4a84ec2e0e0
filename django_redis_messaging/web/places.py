"""Positions in a chat as they come in a query: a cursor, or an id."""

from __future__ import annotations

from django.http import QueryDict
from django.utils.translation import gettext as _

from . import problems


def place(query: QueryDict, name: str) -> str | int | None:
    """The cursor or id that the query gives under `name`, if any."""
    value = query.get(name, "")
    if not value:
        return None
    return number(value) if value.isascii() and value.isdigit() else value


def number(value: str) -> int:
    """An id of at most 15 digits: more than that is none."""
    if not (value.isascii() and value.isdigit() and len(value) <= 15):
        raise problems.invalid(_("This is no message id."))
    return int(value)
