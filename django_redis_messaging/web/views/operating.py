"""Pages for operators: rate limits, locks and what else coordinates processes, to reset limits and to release
locks."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from urllib.parse import quote, unquote, urlencode

from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect
from django.utils.formats import date_format, number_format
from django.utils.functional import cached_property
from django.utils.timezone import localtime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ... import conf
from ...core.encoding import current_prefix, printable
from ...services.common.operators import (
    ListedLock,
    ListedReadWriteLock,
    list_latches,
    list_locks,
    list_rwlocks,
    list_semaphores,
)
from ...services.common.scanning import scan_budget
from ...services.locks.lock import Lock, LockInfo
from ...services.rates.listing import OWN, RateUse, list_rates, reset_rate
from ...services.rates.rate_limit import declared_limits
from ...services.rates.user_rates import RATES
from .. import problems
from ..base import MessagingPage
from ..layout import ADMIN, AUTO, STANDALONE, has_admin, is_staff
from ..limit_rules import declared_services
from ..problems import Answer, Problem

logger = logging.getLogger(__name__)

#: keys in Redis after which a list of a page ends
MAX_KEYS = 10_000
#: maximum number of rows of a table
MAX_ROWS = 200
#: characters that hidden fields don't keep, and that of the encoding
_CHANGED = re.compile(r"[%\r\n]")
_NOT_USED = Answer(
    404, "not_found", gettext_lazy("This key has no uses that count any more. Nothing was reset.")
)
_NOT_HELD = Answer(404, "not_found", gettext_lazy("Nobody holds this lock any more."))
_OTHER_HOLDER = Answer(
    409, "changed", gettext_lazy("The lock has another holder by now. Nothing was released.")
)


@dataclass(frozen=True)
class Cell:
    """What is in a cell of a table."""

    text: str
    #: a second line
    detail: str = ""
    #: a word that marks the row, before the text
    mark: str = ""
    is_number: bool = False


#: what a row may contain: a text, a number, a moment, a duration, nothing, or a Cell
Value = str | int | datetime | timedelta | Cell | None


@dataclass(frozen=True)
class Action:
    """A button of a row, or a link to a page with one."""

    label: str
    #: what it is about, for a screen reader
    object: str
    url: str
    #: the parameters
    data: Mapping[str, str]
    method: Literal["get", "post"] = "post"


@dataclass(frozen=True)
class Row:
    """The values of a row, in the order of the columns."""

    values: Sequence[Value]
    action: Action | None = None


@dataclass
class Table:
    """A table of a page. Of many items, the first are shown."""

    title: str
    columns: Sequence[str]
    items: Sequence[Any]
    #: makes the row of an item
    row: Callable[[Any], Row]
    #: the text that is shown instead of a table without rows
    empty: str
    #: whether items may be missing because the search ended early
    is_partial: bool = False

    @cached_property
    def rows(self) -> list[tuple[Row, list[tuple[str, Cell]]]]:
        """The rows that are shown, with their cells, each with its column."""
        rows = [self.row(item) for item in self.items[:MAX_ROWS]]
        return [(row, list(zip(self.columns, map(to_cell, row.values), strict=True))) for row in rows]

    @property
    def left_out(self) -> int:
        """The number of items that are not shown."""
        return len(self.items) - len(self.rows)

    @property
    def has_actions(self) -> bool:
        """Whether a row has a button."""
        return any(row.action for row, _cells in self.rows)


def to_cell(value: Any) -> Cell:
    """What a table shows for a value."""
    match value:
        case Cell():
            return value
        case None:
            return Cell("")
        case datetime():
            return Cell(date_format(localtime(value), "SHORT_DATETIME_FORMAT"))
        case timedelta():
            return Cell(duration(value.total_seconds()), is_number=True)
        case int():
            return Cell(number_format(value, use_l10n=True), is_number=True)
    return Cell(printable(value))


def duration(seconds: float) -> str:
    """A time to wait as text: its two largest units.

    >>> duration(4.25), duration(75), duration(3600), duration(90_000)
    ('4.2 s', '1 min 15 s', '1 h', '1 d 1 h')
    """
    if round(seconds, 1) < 60:
        exact = number_format(seconds, 0 if seconds == round(seconds) else 1)
        return _("%(number)s s") % {"number": exact}
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    parts = [
        (days, _("%(number)s d")), (hour, _("%(number)s h")), (minute, _("%(number)s min")),
        (second, _("%(number)s s")),
    ]  # fmt: skip
    first = next(at for at, (number, _text) in enumerate(parts) if number)
    return " ".join(text % {"number": number} for number, text in parts[first : first + 2] if number)


class OperatingPage(MessagingPage):
    """A page for operators."""

    invalid_message = gettext_lazy("This name is not valid.")

    def check_access(self, request: HttpRequest) -> None:
        super().check_access(request)
        if not self.active_identity.may_operate(request.user):
            raise Problem(problems.NOT_PERMITTED)

    @property
    def layout(self) -> str:
        """That of the admin, whose index leads here, for its users; else that of the other pages."""
        is_of_site = super().layout not in (ADMIN, AUTO, STANDALONE)
        return ADMIN if is_of_site and has_admin() and is_staff(self.request.user) else super().layout

    def read(self, *tables: Callable[[], Table]) -> list[Table]:
        """The tables, for each of which as much time is left to search: half of WEB_DEADLINE together."""
        found = []
        for read in tables:
            with scan_budget(MAX_KEYS, conf.current().WEB_DEADLINE / 2 / len(tables)) as budget:
                table = read()
            table.is_partial = budget.is_spent
            found.append(table)
        return found


class LimitsView(OperatingPage):
    """What keys have used of rate limits, those at their limit first; `?name=` and `?key=` filter them."""

    template_name = "django_redis_messaging/limits.html"
    tab = "limits"

    def get(self, request: HttpRequest) -> HttpResponse:
        names = {*declared_limits(), *(limit.name for limit in declared_services())}
        context = {
            "page_title": _("Rate limits"),
            "tables": self.read(self.uses),
            "filters": filters(request.GET),
            "names": sorted([*names, *(OWN + action for action in RATES)]),
        }
        return self.page(context)

    def uses(self) -> Table:
        """The keys with uses that count."""
        chosen = filters(self.request.GET)
        found = list_rates(
            conf.alias(),
            current_prefix(),
            chosen.get("name"),
            chosen.get("key"),
            declared=declared_services(),
        )
        return Table(
            _("Keys"),
            [_("Limit"), _("Key"), _("Left"), _("Free again in"), _("All free in")],
            sorted(found, key=lambda use: use.urgency),
            self.row,
            _("No uses are counted."),
        )

    def row(self, use: RateUse) -> Row:
        """A key, with a button that resets it."""
        rate = _("not declared here")
        if use.rate is not None:
            rate = _("%(limit)s in %(period)s") % {
                "limit": number_format(use.rate.limit), "period": duration(use.rate.period),
            }  # fmt: skip
        values: list[Value] = [
            Cell(printable(use.name), rate),
            use.key,
            left(use),
            timedelta(seconds=use.retry_after) if use.is_at_limit else None,
            None if use.reset_after is None else timedelta(seconds=use.reset_after),
        ]
        url = self.url("reset_limit") + query(self.request.GET)
        button = Action(_("Reset"), printable(use.key), url, hidden(name=use.name, key=use.key))
        return Row(values, button)


def left(use: RateUse) -> Cell:
    """How many uses are left, of how many; or how many were counted."""
    if use.remaining is None:
        return Cell(_("%(number)s counted") % {"number": number_format(use.used)}, is_number=True)
    numbers = {"left": number_format(use.remaining), "limit": number_format(use.used + use.remaining)}
    text = _("%(left)s of %(limit)s") % numbers
    return Cell(text, mark=_("At limit") if use.is_at_limit else "", is_number=True)


def filters(given: QueryDict) -> dict[str, str]:
    """The limit and the key to which the page of limits is restricted."""
    return {what: value for what in ("name", "key") if (value := given.get(what, "").strip())}


def query(given: QueryDict) -> str:
    """The same as the query string of a URL."""
    return "?" + urlencode(filters(given)) if filters(given) else ""


def hidden(**values: str) -> dict[str, str]:
    """Hidden fields of forms, in which browsers would change line breaks: these are percent-encoded.

    >>> hidden(name="100%", key="a\\nb: c")
    {'name': '100%25', 'key': 'a%0Ab: c'}
    """
    return {what: _CHANGED.sub(lambda found: quote(found[0]), value) for what, value in values.items()}


class ResetLimitView(OperatingPage):
    """Forgets what the `key` has used of the limit `name`. The filters of the page are in the URL."""

    def post(self, request: HttpRequest) -> HttpResponse:
        name, key = (unquote(request.POST.get(what, "")) for what in ("name", "key"))
        self.count_use("change")
        with scan_budget(MAX_KEYS, conf.current().WEB_DEADLINE / 2):
            was_used = reset_rate(conf.alias(), current_prefix(), name, key, declared=declared_services())
        if was_used:
            logger.info("User %r reset %r in the rate limit %r.", self.me, key, name)
        if self.wants_json:
            return self.done({"reset": was_used}, "limits")
        if not was_used:
            raise Problem(_NOT_USED)
        return redirect(self.url("limits") + query(request.GET))


class LocksView(OperatingPage):
    """The locks of all kinds, semaphores and latches in use.

    Each table is a method; to add one, add it to `get`.
    """

    template_name = "django_redis_messaging/locks.html"
    tab = "locks"

    def get(self, request: HttpRequest) -> HttpResponse:
        tables = self.read(self.locks, self.rwlocks, self.semaphores, self.latches)
        return self.page({"page_title": _("Locks"), "tables": tables})

    def locks(self) -> Table:
        """The locks that are held or waited for, with links to release them."""
        found = list_locks(conf.alias(), current_prefix())
        return Table(
            _("Locks"),
            [_("Name"), _("Holder"), _("Held since"), _("Lease left"), _("Fence"), _("Waiting")],
            by_name(found),
            self.lock_row,
            _("No locks are held."),
        )

    def lock_row(self, lock: ListedLock) -> Row:
        info = lock.info
        fence = Cell(str(info.fence), is_number=True)
        values: list[Value] = [
            lock.name,
            info.holder,
            held_since(info),
            lease_left(info),
            fence,
            info.waiting,
        ]
        if info.holder is None:
            return Row(values)
        data = hidden(name=lock.name, **({} if lock.key is None else {"key": lock.key}))
        button = Action(_("Release…"), printable(lock.name), self.url("release_lock"), data, "get")
        return Row(values, button)

    def rwlocks(self) -> Table:
        """The read-write locks that are held or waited for."""
        found = list_rwlocks(conf.alias(), current_prefix())
        return Table(
            _("Read-write locks"),
            [_("Name"), _("Writer"), _("Readers"), _("Lease left"), _("Fence"), _("Waiting")],
            by_name(found),
            self.rwlock_row,
            _("No read-write locks are held."),
        )

    def rwlock_row(self, lock: ListedReadWriteLock) -> Row:
        info = lock.info
        left = info.holders[0].expires_at - info.read_at if info.holders else None
        fence = Cell(str(info.fence), is_number=True)
        return Row([lock.name, info.writer, info.readers, left, fence, info.waiting])

    def latches(self) -> Table:
        """The latches."""
        found = list_latches(conf.alias(), current_prefix())
        return Table(
            _("Latches"),
            [_("Name"), _("Events"), _("Missing")],
            by_name(found),
            lambda one: Row([one.name, one.info.count, one.info.remaining]),
            _("There are no latches."),
        )

    def semaphores(self) -> Table:
        """The semaphores with holders or waiting clients."""
        found = list_semaphores(conf.alias(), current_prefix())
        return Table(
            _("Semaphores"),
            [_("Name"), _("Limit"), _("Held"), _("Waiting")],
            by_name(found),
            lambda one: Row([one.name, one.info.limit, one.info.held, one.info.waiting]),
            _("No semaphores are in use."),
        )


def by_name(found: Iterable[Any]) -> list[Any]:
    return sorted(found, key=lambda one: one.name)


def held_since(info: LockInfo) -> Cell | None:
    """When the lock was acquired, and for how long it has been held."""
    if info.acquired_at is None:
        return None
    held_for = max(info.read_at - info.acquired_at, timedelta())
    return Cell(to_cell(info.acquired_at).text, duration(held_for.total_seconds()))


def lease_left(info: LockInfo) -> timedelta | Cell | None:
    """How long the lease still lasts."""
    if info.expires_at is not None:
        return max(info.expires_at - info.read_at, timedelta())
    return None if info.holder is None else Cell(_("no lease"))


class ReleaseLockView(OperatingPage):
    """Asks whether to release a lock, and releases it for its holder."""

    template_name = "django_redis_messaging/release.html"
    tab = "locks"

    def get(self, request: HttpRequest) -> HttpResponse:
        lock, info = self.held(request.GET)
        context = {
            "page_title": _("Release this lock?"),
            "lock": printable(lock.name),
            "holder": printable(str(info.holder)),
            "facts": [
                (_("Held since"), to_cell(held_since(info))),
                (_("Lease left"), to_cell(lease_left(info))),
                (_("Waiting"), to_cell(info.waiting)),
            ],
            "data": hidden(name=lock.name, key=unquote(request.GET.get("key", "")), holder=str(info.holder)),
        }
        return self.page(context)

    def post(self, request: HttpRequest) -> HttpResponse:
        self.count_use("change")
        lock, _info = self.held(request.POST)
        holder = unquote(request.POST.get("holder", ""))
        if not lock.release_holder(holder):
            raise Problem(_OTHER_HOLDER)
        logger.warning("User %r released the lock %r, which %r held.", self.me, lock.name, holder)
        return self.done({"released": True}, "locks")

    def held(self, given: QueryDict) -> tuple[Lock, LockInfo]:
        """The lock of these parameters. Raises the Problem if nobody holds it."""
        name, key = (unquote(given.get(what, "")) for what in ("name", "key"))
        lock = Lock(name, key=key or None)
        info = lock.info()
        # Without a fence, the key may be one of something else.
        if info.holder is None or not info.fence:
            raise Problem(_NOT_HELD)
        return lock, info
