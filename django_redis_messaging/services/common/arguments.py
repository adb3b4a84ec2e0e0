"""Checks of arguments that several services take; users; request ids (they make repeats recognizable);
cursors.

A cursor consists of three hexadecimal numbers: the epoch of the log (when it was made), the entry's id, and
the entry's stamp, which differs from that of any other entry with this id. Before them, the cursors of a
broadcast channel have 8 digits that identify the channel.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from django.apps import apps
from django.db.models.manager import BaseManager
from django.utils.functional import LazyObject

from ... import conf
from ...core.encoding import name
from ...errors import InvalidArgument

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser
    from django.contrib.auth.models import AnonymousUser

    #: a user object of the site, such as request.user; a str is a member id. Anonymous users are refused at
    #: run time: type checkers can't know that login_required has let nobody else in.
    UserOrId: TypeAlias = str | AbstractBaseUser | AnonymousUser
else:  # for typing.get_type_hints(); this module may be imported before models can be
    UserOrId = str | Any

T = TypeVar("T")
C = TypeVar("C", bound=Callable[..., object])
I = TypeVar("I", bound=Iterable[object])  # noqa: E741

#: a duration: seconds, or a timedelta
Duration = float | timedelta

#: maximum number of items that one script call reads or writes
MAX_ITEMS = 1000
#: ms; the maximum of a duration, 100 years, keeps all timestamps in the range of exact floats
MAX_DURATION = 100 * 366 * 86_400_000
#: the moments that can be read back in every time zone
MIN_MOMENT, MAX_MOMENT = datetime(1, 1, 3, tzinfo=UTC), datetime(9999, 12, 29, tzinfo=UTC)
#: those of channels have 13 digits at most in each number, which then is exact in Lua
_CURSOR = re.compile(
    r"(?:([0-9a-f]{8})-(?=[0-9a-f]{1,13}-[0-9a-f]+-[0-9a-f]{1,13}$))?"
    r"([0-9a-f]{1,14})-([0-9a-f]{1,13})-([0-9a-f]{1,21})",
    re.ASCII,
)
#: above any id that a log can reach, and still exact as a number in Lua
_MAX_ID = 2**52


class Stop(Protocol):
    """Whether a loop has to end, such as threading.Event."""

    def is_set(self) -> bool: ...


def count(value: int, what: str, *, maximum: int = MAX_ITEMS) -> int:
    """Return `value` if it is an int between 1 and `maximum`."""
    return integer(value, what, minimum=1, maximum=maximum)


def integer(value: int, what: str, *, minimum: int, maximum: int) -> int:
    """Return `value` if it is an int between `minimum` and `maximum`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} must be an int, not {type(value).__name__}.")
    if not minimum <= value <= maximum:
        raise InvalidArgument(f"{what} must be between {minimum} and {maximum}, not {value}.")
    return value


def _from_user(user: object, what: str) -> str:
    # The app maps users to members, in a layer above this one: see MessagingConfig.
    hook = getattr(apps.app_configs.get("django_redis_messaging"), "user_hook", None)
    if hook is None:
        raise TypeError(f"{what} must be a str, not {type(user).__name__}.")
    return cast(str, hook(user, what))


#: (user, what): returns the member id of a user object, or `user` if it is a valid member id. A partial,
#: because a function around `name` would cost each operation another call.
member_id = cast(Callable[[UserOrId, str], str], partial(name, convert=_from_user))


def member_ids(users: Iterable[UserOrId], what: str) -> list[str]:
    """The member ids of several users, in their order."""
    # a lazy object would be iterable whatever it is
    if issubclass(type(users), str | bytes | LazyObject) or not isinstance(users, Iterable):
        raise TypeError(f"{what} must be a list of users, not {type(users).__name__}{_remedy(users)}.")
    item = f"an item of {what}"
    return [member_id(user, item) for user in users]


def _remedy(value: object) -> str:
    """What to do with a value that was passed in place of a list of users, if it has to do with users."""
    if isinstance(value, type):
        return ""
    if issubclass(type(value), BaseManager):
        return ": call .all()"
    # a lazy object is not loaded for an error
    is_user = issubclass(type(value), str | LazyObject) or hasattr(value, "is_authenticated")
    return ": wrap it in a list" if is_user else ""


def sequence(items: I, what: str) -> I:
    """Return `items` unless it is a single str."""
    if isinstance(items, str):
        raise TypeError(f"{what} must be a list, not a str: put it in a list.")
    return items


def flag(value: bool, what: str) -> int:
    """Convert a bool to 1 or 0, as scripts take it."""
    if not isinstance(value, bool):
        raise TypeError(f"{what} must be True or False, not {type(value).__name__}.")
    return int(value)


def callback(function: C | None, what: str, *, renew: bool) -> C | None:
    """Return a function to call when a renewed lease is lost, if it can be called."""
    if function is not None:
        if not callable(function):
            raise TypeError(f"{what} must be callable, not {type(function).__name__}.")
        if not renew:
            raise InvalidArgument(f"{what} needs renew=True: other leases are not observed.")
    return function


def milliseconds(value: Duration, what: str, *, minimum: int = 0) -> int:
    """Convert a duration to ms, rounded up, and check that it is at least `minimum` ms."""
    ms = value * 1000 if type(value) is int and value >= 0 else _milliseconds(value, what)
    if not minimum <= ms <= MAX_DURATION:
        raise InvalidArgument(
            f"{what} must be between {minimum / 1000:g} s and 100 years, not {ms / 1000:g} s."
        )
    return ms


def _milliseconds(value: Duration, what: str) -> int:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{what} must be seconds or a timedelta, not {type(value).__name__}.")
    if not math.isfinite(value) or value < 0:
        raise InvalidArgument(f"{what} must be 0 s or more, not {value} s.")
    # round() first: a float such as 0.1 is slightly greater than its decimal form
    return math.ceil(round(value * 1000, 6))


def timestamp_ms(value: datetime | None, what: str) -> int:
    """Convert an aware datetime to ms since the epoch; None to 0."""
    if value is None:
        return 0
    if not isinstance(value, datetime):
        raise TypeError(f"{what} must be an aware datetime or None, not {type(value).__name__}.")
    if value.tzinfo is None:
        raise InvalidArgument(f"{what} is a naive datetime: give it a time zone, as timezone.now() has.")
    return int(timestamp(value, what) * 1000)


def timestamp(value: datetime, what: str) -> float:
    """Convert a datetime to seconds since the epoch, if it is one that can be read back."""
    try:
        seconds = value.timestamp()
    except (ValueError, OverflowError):  # such as datetime.max, in a local time zone
        seconds = math.inf
    if not MIN_MOMENT.timestamp() <= seconds <= MAX_MOMENT.timestamp():
        raise InvalidArgument(
            f"{what} must be between {MIN_MOMENT.date()} and {MAX_MOMENT.date()}, not {value}."
        )
    return seconds


def to_datetime(ms: float | bytes) -> datetime:
    """Milliseconds of the server's clock as an aware datetime.

    >>> to_datetime(1_790_000_000_000.001).isoformat()
    '2026-09-21T14:13:20.000001+00:00'
    """
    return datetime.fromtimestamp(float(ms) / 1000, UTC)


def request(request_id: str | None) -> str:
    """Return the caller's request id if it is valid; None makes a new one, for internal retries."""
    return os.urandom(8).hex() if request_id is None else name(request_id, "request_id")


def settled(reply: int | None) -> bool | None:
    """Convert the reply of a call that `settles`: whether it changed the state; None if unknown."""
    return None if reply is None else bool(reply)


def window() -> int:
    """How long request ids are remembered, in ms."""
    return conf.current().REQUEST_WINDOW * 1000


class Cursor(NamedTuple):
    """A cursor as the scripts take it. A bare id has neither epoch nor stamp."""

    id: int
    epoch: int | str = ""
    stamp: int | str = ""


def parse_cursor(value: str | int, what: str) -> Cursor:
    """Parse and check the cursor of a message or mail, or its bare id."""
    if isinstance(value, str):
        match = _CURSOR.fullmatch(value)
        if match is None or match[1] is not None:
            raise InvalidArgument(f"{what} is not a cursor: pass the cursor of a message, or its id.")
        _, epoch, number, stamp = match.groups()
        return Cursor(int(number, 16), int(epoch, 16), int(stamp, 16))
    return Cursor(checked_id(value, what, min_id=0))


def parse_channel_cursor(value: str, channel_id: str) -> tuple[int, int, int]:
    """Parse and check a cursor of the broadcast channel that these 8 digits identify: epoch, id and stamp."""
    if not isinstance(value, str):
        raise TypeError(f"cursor must be a str or None, not {type(value).__name__}.")
    match = _CURSOR.fullmatch(value)
    if match is None or match[1] is None:
        raise InvalidArgument("cursor is not valid: use one that fetch() or cursor() returned, or None.")
    found, epoch, number, stamp = match.groups()
    if found != channel_id:
        raise InvalidArgument("cursor belongs to another channel: use one of this channel, or None.")
    return int(epoch, 16), int(number, 16), int(stamp, 16)


def format_cursor(epoch: int, number: int, stamp: int = 0) -> str:
    """The cursor of an entry; without `stamp`, of a position where only the epoch can be checked."""
    return f"{epoch:x}-{number:x}-{stamp:x}"


def checked_id(value: int, what: str, *, min_id: int = 1) -> int:
    """`value` if it can be the id of an entry."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} must be an id or a cursor, not {type(value).__name__}.")
    if not min_id <= value <= _MAX_ID:
        raise InvalidArgument(f"{what} must be between {min_id} and {_MAX_ID}, not {value}.")
    return value
