"""Reads positions in a chat and message ids from request parameters."""

from __future__ import annotations

from django.http import HttpRequest, QueryDict
from django.utils.translation import gettext_lazy as _

from ..services.cursors import parse_cursor
from . import problems
from .problems import Problem

#: the text for a cursor or id that the services refuse
INVALID_POSITION = _("This is not a valid position in the chat.")
#: digits of the longest id that is accepted
MAX_ID_DIGITS = 15
#: characters of a text that a form shows again after it was refused
MAX_SHOWN_AGAIN = 128 * 1024
#: characters of a search for people
MAX_SEARCH_LENGTH = 200


def check_text(request: HttpRequest) -> None:
    """Raise the Problem if a parameter can't be stored or shown: some charsets have surrogates."""
    for query in (request.GET, request.POST):
        for key, values in query.lists():
            try:
                "".join([key, *map(str, values)]).encode()
            except UnicodeEncodeError:
                raise Problem(problems.NOT_TEXT) from None


def shown_again(given: QueryDict) -> QueryDict:
    """The input for a form that shows it again, without very long texts: as HTML, they may take six times
    their size."""
    shown = given.copy()
    for key, values in given.lists():
        shown.setlist(key, [value for value in values if len(value) <= MAX_SHOWN_AGAIN])
    return shown


def get_search(query: QueryDict) -> str:
    """The text to search people for. Raises the Problem if it is too long."""
    text = query.get("q", "").replace("\0", "")
    if len(text) > MAX_SEARCH_LENGTH:
        raise problems.invalid(_("Search for a shorter name."))
    return text


def get_position(query: QueryDict, name: str) -> str | int | None:
    """The cursor or message id in the parameter `name`, or None if it is missing or empty."""
    value = query.get(name, "")
    return parse_position(value) if value else None


def get_checked_position(query: QueryDict, name: str) -> str | int | None:
    """The same, checked before anything is sent to Redis."""
    value = get_position(query, name)
    if value is not None:
        parse_cursor(value, name)
    return value


def get_number(query: QueryDict, name: str) -> int | None:
    """The number in the parameter `name`, or None if it is missing or empty."""
    value = query.get(name, "")
    if not value:
        return None
    if not (value.isascii() and value.isdigit() and len(value) <= MAX_ID_DIGITS):
        raise problems.invalid(INVALID_POSITION)
    return int(value)


def parse_position(value: str) -> str | int:
    """An id as a number; anything else as it is: the services check cursors."""
    return parse_id(value) if value.isascii() and value.isdigit() else value


def parse_id(value: str) -> int:
    """A message id. Raises the Problem for anything else."""
    if not (value.isascii() and value.isdigit() and len(value) <= MAX_ID_DIGITS):
        raise problems.invalid(_("This is not a valid message ID."))
    return int(value)
