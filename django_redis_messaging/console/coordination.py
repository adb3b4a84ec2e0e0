"""Locks of all kinds, semaphores, latches and rate limits: their pages, to release locks and to reset
limits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import quote, unquote

from django.http import HttpRequest, HttpResponse, QueryDict
from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import conf
from ..core.encoding import current_prefix, printable
from ..services.common.operators import (
    ListedLock,
    ListedReadWriteLock,
    list_latches,
    list_locks,
    list_rwlocks,
    list_semaphores,
)
from ..services.common.scanning import scan_budget
from ..services.common.things import Thing
from ..services.locks.lock import Lock, LockInfo
from ..services.rates.listing import OWN, RateUse, list_rates, reset_rate
from ..services.rates.rate_limit import declared_limits
from ..services.rates.user_rates import RATES
from ..web.limit_rules import declared_services
from ..web.problems import Answer, Problem
from .base import MAX_KEYS, ChangePage, ConsolePage, Question
from .tables import Cell, Row, Table, Value, duration, to_cell

NOT_USED = Answer(
    404, "not_found", gettext_lazy("This key has no uses that count any more. Nothing was reset.")
)
NOT_HELD = Answer(404, "not_found", gettext_lazy("Nobody holds this lock any more."))
OTHER_HOLDER = Answer(
    409, "changed", gettext_lazy("The lock has another holder by now. Nothing was released.")
)


class LimitsPage(ConsolePage):
    """What keys have used of rate limits, those at their limit first; `?name=` and `?key=` filter them."""

    section = "limits"
    template_name = "django_redis_messaging/console/limits.html"

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
        thing = Thing("rate", use.key, use.name)
        back = self.request.get_full_path()
        return Row(values, self.button("reset", _("Reset"), thing, next=back))


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


class ResetLimit(ChangePage):
    """Forgets what a key has used of a limit."""

    section = "limits"
    action = "reset"
    kinds = ("rate",)

    def question(self, things: Sequence[Thing]) -> Question:
        [thing] = things
        return Question(
            _("Reset this key?"),
            _("All its uses are forgotten: the next ones are allowed again, up to the limit."),
            _("Reset"),
            [(_("Limit"), to_cell(thing.where)), (_("Key"), to_cell(thing.name))],
            things=things,
        )

    def apply(self, things: Sequence[Thing]) -> int:
        [thing] = things
        with scan_budget(MAX_KEYS, conf.current().WEB_DEADLINE / 2):
            services = declared_services()
            if not reset_rate(conf.alias(), current_prefix(), thing.where, thing.name, declared=services):
                raise Problem(NOT_USED)
        return 1

    def said(self, number: int) -> str:
        return _("The key was reset.")


class LocksPage(ConsolePage):
    """The locks of all kinds, semaphores and latches in use.

    Each table is a method; to add one, add it to `get`.
    """

    section = "locks"

    def get(self, request: HttpRequest) -> HttpResponse:
        tables = self.read(self.locks, self.rwlocks, self.semaphores, self.latches)
        return self.page({"page_title": _("Locks"), "tables": tables})

    def locks(self) -> Table:
        """The locks that are held or waited for, with buttons to release them."""
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
        values: list[Value] = [
            lock.name,
            info.holder,
            held_since(info),
            lease_left(info),
            Cell(str(info.fence), is_number=True),
            info.waiting,
        ]
        if info.holder is None:
            return Row(values)
        # the key: see Lock(key=...)
        thing = Thing("lock", lock.name, "" if lock.key is None else lock.key)
        holder = quote(info.holder)
        return Row(values, self.button("release", _("Release"), thing, is_danger=True, holder=holder))

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


class ReleaseLock(ChangePage):
    """Releases a lock for its holder, the one whose name is in the parameter `holder`."""

    section = "locks"
    action = "release"
    kinds = ("lock",)

    @property
    def holder(self) -> str:
        """The holder that the page has shown, percent-encoded in forms."""
        return unquote(self.request.POST.get("holder", ""))

    def question(self, things: Sequence[Thing]) -> Question:
        [thing] = things
        _lock, info = held(thing)
        return Question(
            _("Release this lock?"),
            _(
                "The holder loses the lock, although it may still be working, and the first waiting client "
                "acquires it. Release it only if the holder hangs or has ended."
            ),
            _("Release"),
            [
                (_("Name"), to_cell(thing.name)),
                (_("Holder"), to_cell(info.holder)),
                (_("Held since"), to_cell(held_since(info))),
                (_("Lease left"), to_cell(lease_left(info))),
                (_("Waiting"), to_cell(info.waiting)),
            ],
            is_danger=True,
            things=things,
        )

    def apply(self, things: Sequence[Thing]) -> int:
        [thing] = things
        lock, _info = held(thing)
        if not lock.release_holder(self.holder):
            raise Problem(OTHER_HOLDER)
        return 1

    def detail(self) -> str:
        return _("Held by %(holder)s.") % {"holder": printable(self.holder)}

    def said(self, number: int) -> str:
        return _("The lock was released.")


def held(thing: Thing) -> tuple[Lock, LockInfo]:
    """The lock, and its state. Raises the Problem if nobody holds it."""
    lock = Lock(thing.name, key=thing.where or None)
    info = lock.info()
    # Without a fence, the key may be one of something else.
    if info.holder is None or not info.fence:
        raise Problem(NOT_HELD)
    return lock, info
