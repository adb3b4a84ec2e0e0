"""Locks of all kinds, semaphores, latches and rate limits: their pages, to release locks and permits, to set
limits of semaphores, and to reset rate limits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar
from urllib.parse import quote, unquote

from django.http import HttpRequest, HttpResponse, QueryDict
from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import conf
from ..core.encoding import current_prefix, printable
from ..core.operations import perform
from ..services.common import pages
from ..services.common.operators import (
    ListedLatch,
    ListedLock,
    ListedReadWriteLock,
    ListedSemaphore,
    read_latches,
    read_semaphores,
)
from ..services.common.purposes import Purpose, purpose_of
from ..services.common.scanning import scan_budget
from ..services.common.things import Thing
from ..services.locks.lock import MAX_LISTED, Lock, LockInfo, LockKeys, parse_fence_key
from ..services.rates.listing import OWN, RateUse, page_rates, read_rate, reset_rate
from ..services.rates.rate_limit import declared_limits
from ..services.rates.user_rates import RATES
from ..services.rwlocks.rwlock import ReadWriteLock, ReadWriteLockHolder, ReadWriteLockWaiter
from ..services.semaphores.semaphore import MAX_PERMITS, Semaphore, SemaphoreHolder, SemaphoreWaiter
from ..web import problems
from ..web.limit_rules import declared_services
from ..web.problems import Answer, Problem
from .base import ChangePage, ConsolePage, Question
from .listing import NOT_FOUND, FactsPage, ListPage, client
from .tables import Action, Cell, Row, Table, Value, duration, to_cell
from .why import explained

#: keys in Redis after which the search for a key to reset ends
MAX_KEYS = 10_000
NOT_USED = Answer(
    404, "not_found", gettext_lazy("This key has no uses that count any more. Nothing was reset.")
)
NOT_HELD = Answer(404, "not_found", gettext_lazy("Nobody holds this lock any more."))
OTHER_HOLDER = Answer(
    409, "changed", gettext_lazy("The lock has another holder by now. Nothing was released.")
)
NO_HOLDER = Answer(
    409, "changed", gettext_lazy("This client doesn't hold it any more. Nothing was released.")
)


class LimitsPage(ConsolePage):
    """What keys have used of rate limits, those at their limit first; `?name=` and `?key=` filter them,
    `?kind=own` shows the app's own limits, `?cursor=` pages."""

    section = "limits"
    template_name = "django_redis_messaging/console/limits.html"

    def get(self, request: HttpRequest) -> HttpResponse:
        chosen = filters(request.GET)
        own = request.GET.get("kind") == "own" or chosen.get("name", "").startswith(OWN)
        names = {*declared_limits(), *(limit.name for limit in declared_services())}
        tabs = [(_("Limits of the site"), "site", not own), (_("Limits of the app"), "own", own)]
        context = {
            "page_title": _("Rate limits"),
            "tables": [self.uses(chosen, own=own)],
            "filters": chosen,
            "kind": "own" if own else "site",
            "tabs": [(title, self.url("limits", kind=kind), shown) for title, kind, shown in tabs],
            "names": sorted([*names, *(OWN + action for action in RATES)]),
        }
        return self.page(context)

    def uses(self, chosen: dict[str, str], *, own: bool) -> Table:
        """The keys with uses that count."""
        found = page_rates(
            conf.alias(),
            current_prefix(),
            chosen.get("name"),
            chosen.get("key"),
            self.request.GET.get("cursor", ""),
            own=own,
            declared=declared_services(),
        )
        kind = "own" if own else "site"
        following = found.cursor and self.url("limits", kind=kind, cursor=found.cursor, **chosen)
        return Table(
            _("Keys"),
            [_("Rate limit"), _("Key"), _("Left"), _("Free again in"), _("All free in")],
            sorted(found.uses, key=lambda use: use.urgency),
            self.row,
            _("Nothing on this page of the search.") if following else _("No uses are counted."),
            next_url=following,
        )

    def row(self, use: RateUse) -> Row:
        """A key, with a button that resets it."""
        thing = Thing("rate", use.key, use.name)
        values: list[Value] = [
            Cell(printable(use.name), rate_of(use)),
            Cell(printable(use.key), url=self.url_of(thing)),
            left(use),
            timedelta(seconds=use.retry_after) if use.is_at_limit else None,
            None if use.reset_after is None else timedelta(seconds=use.reset_after),
        ]
        return Row(values, self.button("reset", _("Reset"), thing))


def rate_of(use: RateUse) -> str:
    """The tightest of the limits, as text."""
    if use.rate is None:
        return _("not declared here")
    numbers = {"limit": number_format(use.rate.limit), "period": duration(use.rate.period)}
    return _("%(limit)s in %(period)s") % numbers


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


class RatePage(FactsPage):
    """What one key has used of a limit."""

    section = "limits"
    kinds = ("rate",)

    def get(self, request: HttpRequest) -> HttpResponse:
        thing, services = self.thing, declared_services()
        use = read_rate(conf.alias(), current_prefix(), thing.where, thing.name, declared=services)
        if use is None:
            raise Problem(NOT_FOUND)
        free, all_free = use.retry_after if use.is_at_limit else None, use.reset_after
        facts = [
            (_("Rate limit"), Cell(printable(use.name), rate_of(use))),
            (_("Key"), to_cell(use.key)),
            (_("Left"), left(use)),
            (_("Free again in"), to_cell(None if free is None else timedelta(seconds=free))),
            (_("All free in"), to_cell(None if all_free is None else timedelta(seconds=all_free))),
        ]
        actions = self.button("reset", _("Reset"), thing)
        return self.described(facts, actions=actions, **explained(self, thing))


class ResetLimit(ChangePage):
    """Forgets what a key has used of a limit."""

    section = "limits"
    action = "reset"
    label = gettext_lazy("Reset")
    kinds = ("rate",)
    limit = 1

    def question(self, things: Sequence[Thing]) -> Question:
        thing = only(things)
        return Question(
            _("Reset this key?"),
            _("All its uses are forgotten: the next ones are allowed again, up to the limit."),
            str(self.label),
            [(_("Rate limit"), to_cell(thing.where)), (_("Key"), to_cell(thing.name))],
            things=things,
        )

    def apply(self, things: Sequence[Thing]) -> int:
        thing = only(things)
        with scan_budget(MAX_KEYS, conf.current().WEB_DEADLINE / 2):
            services = declared_services()
            if not reset_rate(conf.alias(), current_prefix(), thing.where, thing.name, declared=services):
                raise Problem(NOT_USED)
        return 1

    def said(self, number: int) -> str:
        return _("The key was reset.")


def only(things: Sequence[Thing]) -> Thing:
    """The thing; raises the Problem if there are several."""
    if len(things) != 1:
        raise Problem(problems.INVALID)
    return things[0]


class LocksPage(ListPage):
    """The locks of all kinds, semaphores and latches."""

    section = "locks"
    titles: ClassVar = {
        "lock": gettext_lazy("Locks"),
        "rwlock": gettext_lazy("Read-write locks"),
        "semaphore": gettext_lazy("Semaphores"),
        "latch": gettext_lazy("Latches"),
    }

    def lock(self) -> Table:
        """The locks that are held or waited for, with buttons to release them."""
        columns = [_("Name"), _("Holder"), _("Held since"), _("Lease left"), _("Fence"), _("Waiting")]
        return self.list_of(pages.page_locks, columns, self.lock_row, _("No locks are held."))

    def lock_row(self, lock: ListedLock) -> Row:
        info, thing = lock.info, Thing("lock", lock.name, lock.key or "")
        purpose = purpose_of(current_prefix(), lock.name, lock.key)
        values: list[Value] = [
            Cell(printable(lock.name), "" if purpose is None else title_of(purpose), url=self.url_of(thing)),
            client(info.holder),
            held_since(info.acquired_at, info.read_at),
            lease_left(info),
            Cell(str(info.fence), is_number=True),
            info.waiting,
        ]
        return Row(values, release_button(self, thing, info.holder))

    def rwlock(self) -> Table:
        """The read-write locks that are held or waited for."""
        columns = [_("Name"), _("Writer"), _("Readers"), _("Lease left"), _("Fence"), _("Waiting")]
        return self.list_of(pages.page_rwlocks, columns, self.rwlock_row, _("No read-write locks are held."))

    def rwlock_row(self, lock: ListedReadWriteLock) -> Row:
        info = lock.info
        left = info.holders[0].expires_at - info.read_at if info.holders else None
        name = Cell(printable(lock.name), url=self.url_of(Thing("rwlock", lock.name)))
        fence = Cell(str(info.fence), is_number=True)
        return Row([name, client(info.writer), info.readers, left, fence, info.waiting])

    def semaphore(self) -> Table:
        """The semaphores."""
        columns = [_("Name"), _("Limit"), _("Held"), _("Waiting")]
        return self.list_of(pages.page_semaphores, columns, self.semaphore_row, _("There are no semaphores."))

    def semaphore_row(self, one: ListedSemaphore) -> Row:
        info = one.info
        name = Cell(printable(one.name), url=self.url_of(Thing("semaphore", one.name)))
        mark = _("All held") if info.held >= info.limit else ""
        return Row([name, info.limit, Cell(number_format(info.held), mark=mark, tone="warn"), info.waiting])

    def latch(self) -> Table:
        """The latches."""
        columns = [_("Name"), _("Events"), _("Missing")]
        return self.list_of(pages.page_latches, columns, self.latch_row, _("There are no latches."))

    def latch_row(self, one: ListedLatch) -> Row:
        name = Cell(printable(one.name), url=self.url_of(Thing("latch", one.name)))
        return Row([name, one.info.count, one.info.remaining])


def title_of(purpose: Purpose) -> str:
    """What a lock of the app is for, as text."""
    names = {"name": printable(purpose.name), "channel": printable(purpose.channel)}
    match purpose.kind:
        case "consumer":
            return _("consumer %(name)s of the file channel %(channel)s") % names
        case "publisher":
            return _("publisher of the file channel %(channel)s") % names
        case "listener":
            return _("listener for the server %(name)s") % names
        case "leader":
            return _("leader %(name)s") % names
    return _("mailing of digests")


def release_button(page: ConsolePage, thing: Thing, holder: str | None) -> list[Action]:
    """The button that releases a lock or a permit for its holder."""
    if holder is None:
        return []
    return page.button("release", _("Release"), thing, is_danger=True, holder=quote(holder))


def held_since(acquired_at: datetime | None, read_at: datetime) -> Cell | None:
    """When a lock was acquired, and for how long it has been held."""
    if acquired_at is None:
        return None
    held_for = max(read_at - acquired_at, timedelta())
    return Cell(to_cell(acquired_at).text, duration(held_for.total_seconds()))


def lease_left(info: LockInfo) -> timedelta | Cell | None:
    """How long the lease still lasts."""
    if info.expires_at is not None:
        return max(info.expires_at - info.read_at, timedelta())
    return None if info.holder is None else Cell(_("no lease"))


class LockPage(FactsPage):
    """One lock, and the clients that wait for it."""

    section = "locks"
    kinds = ("lock",)

    def get(self, request: HttpRequest) -> HttpResponse:
        thing = self.thing
        lock = lock_of(thing)
        info = lock.info()
        # What has another key, and was never acquired, may be no lock: its value is not shown as a holder.
        is_lock = info.fence or info.waiting or (info.holder is not None and not thing.where)
        if not is_lock:
            raise Problem(NOT_FOUND)
        purpose = purpose_of(current_prefix(), thing.name, thing.where or None)
        facts = [
            (_("Lock"), Cell(printable(lock.name), printable(lock.key))),
            (_("Purpose"), to_cell(None if purpose is None else title_of(purpose))),
            (_("Holder"), to_cell(client(info.holder)) if info.holder else Cell(_("free"))),
            (_("Held since"), to_cell(held_since(info.acquired_at, info.read_at))),
            (_("Lease left"), to_cell(lease_left(info))),
            (_("Fence"), Cell(str(info.fence))),
            (_("Waiting"), to_cell(info.waiting)),
        ]
        return self.described(
            facts,
            [waiting_table([(token, None) for token in info.waiters[:MAX_LISTED]])],
            actions=release_button(self, thing, info.holder),
            **explained(self, thing),
        )


def lock_of(thing: Thing) -> Lock:
    """The lock. Raises the Problem if it has another name: CONSOLE decides by the name, and the key is what
    counts."""
    lock = Lock(thing.name, key=thing.where or None)
    prefix = current_prefix()
    if parse_fence_key(prefix, LockKeys(prefix, lock.key).fence) != (thing.name, lock.key):
        raise Problem(problems.INVALID)
    return lock


def waiting_table(clients: Sequence[tuple[str, datetime | None]]) -> Table:
    """The clients that wait, in order; each with the moment since which it does, if that is known."""
    columns = [
        _("Position"),
        _("Client"),
        *([_("Waiting since")] if any(since for _c, since in clients) else []),
    ]

    def row(item: tuple[int, tuple[str, datetime | None]]) -> Row:
        place, (token, since) = item
        return Row([place, client(token), since][: len(columns)])

    return Table(_("Waiting clients"), columns, [*enumerate(clients, 1)], row, _("No clients are waiting."))


class ReadWriteLockPage(FactsPage):
    """One read-write lock, its holders, and the clients that wait for it."""

    section = "locks"
    kinds = ("rwlock",)

    def get(self, request: HttpRequest) -> HttpResponse:
        lock = ReadWriteLock(self.thing.name)
        info, waiting = lock.info(), lock.waiting()
        if not info.fence and not waiting:
            raise Problem(NOT_FOUND)
        facts = [
            (_("Writer"), to_cell(client(info.writer))),
            (_("Readers"), to_cell(info.readers)),
            (_("Fence"), Cell(str(info.fence))),
            (_("Waiting"), to_cell(info.waiting)),
        ]

        def row(holder: ReadWriteLockHolder) -> Row:
            since, left = held_since(holder.acquired_at, info.read_at), holder.expires_at - info.read_at
            values = [client(holder.token), since, left]
            return Row(values, release_button(self, self.thing, holder.token))

        columns = [_("Holder"), _("Held since"), _("Lease left")]
        holders = Table(_("Holders"), columns, info.holders, row, _("Nobody holds it."))
        tables = [holders, rwlock_queue(waiting)]
        return self.described(facts, tables, **explained(self, self.thing))


def rwlock_queue(waiting: Sequence[ReadWriteLockWaiter]) -> Table:
    """The clients that wait to read or to write, in order."""

    def row(item: tuple[int, ReadWriteLockWaiter]) -> Row:
        place, one = item
        return Row([place, client(one.token), _("writing") if one.writes else _("reading"), one.since])

    columns = [_("Position"), _("Client"), _("Access"), _("Waiting since")]
    return Table(_("Waiting clients"), columns, [*enumerate(waiting, 1)], row, _("No clients are waiting."))


class SemaphorePage(FactsPage):
    """One semaphore, its holders, the clients that wait for it, and its limit to change."""

    section = "locks"
    kinds = ("semaphore",)

    def get(self, request: HttpRequest) -> HttpResponse:
        thing = self.thing
        info = stored_semaphore(thing).info
        semaphore = Semaphore(thing.name, 1)
        holders: list[SemaphoreHolder] = semaphore.holders()
        waiting: list[SemaphoreWaiter] = semaphore.waiting()
        facts = [
            (_("Limit"), to_cell(info.limit)),
            (_("Held"), to_cell(info.held)),
            (_("Waiting"), to_cell(info.waiting)),
        ]

        def row(holder: SemaphoreHolder) -> Row:
            values: list[Value] = [client(holder.token), holder.expires_at]
            return Row(values, release_button(self, thing, holder.token))

        columns = [_("Holder"), _("Lease ends")]
        tables = [
            Table(_("Holders"), columns, holders, row, _("No permit is held.")),
            waiting_table([(one.token, one.since) for one in waiting]),
        ]
        field = self.limit_field(info.limit)
        return self.described(facts, tables, field=field, **explained(self, thing))

    def limit_field(self, limit: int) -> dict[str, Any]:
        """The form for another limit; nothing if the user may not set it."""
        if not self.may_act("set_limit", self.thing):
            return {}
        return {
            "method": "post", "url": self.url("set_limit"), "label": _("Number of permits"), "type": "number",
            "name": "limit", "value": limit, "thing": str(self.thing), "button": _("Set the limit"),
        }  # fmt: skip


def stored_semaphore(thing: Thing) -> ListedSemaphore:
    """The semaphore; raises the Problem if it does not exist."""
    found = perform(conf.alias(), read_semaphores(current_prefix(), [thing.name]))
    if not found:
        raise Problem(NOT_FOUND)
    return found[0]


class SetLimit(ChangePage):
    """Sets the number of permits of a semaphore, to that of the parameter `limit`."""

    section = "locks"
    action = "set_limit"
    label = gettext_lazy("Set the limit")
    kinds = ("semaphore",)
    limit = 1

    @property
    def permits(self) -> int:
        """The new limit; raises the Problem for another text."""
        text = self.request.POST.get("limit", "").strip()
        if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) <= MAX_PERMITS):
            reason = _("The limit must be a whole number from 0 to %(maximum)s.") % {"maximum": MAX_PERMITS}
            raise Problem(Answer(400, "invalid", reason))
        return int(text)

    def question(self, things: Sequence[Thing]) -> Question:
        thing, limit = only(things), self.permits
        info = stored_semaphore(thing).info
        return Question(
            _("Set this limit?"),
            _("Holders keep their permits. A limit of 0 lets no further client proceed."),
            str(self.label),
            [
                (_("Name"), to_cell(thing.name)),
                (_("Limit"), to_cell(info.limit)),
                (_("New limit"), to_cell(limit)),
                (_("Held"), to_cell(info.held)),
                (_("Waiting"), to_cell(info.waiting)),
            ],
            things=things,
        )

    def apply(self, things: Sequence[Thing]) -> int:
        thing, limit = only(things), self.permits
        stored_semaphore(thing)
        Semaphore(thing.name, 1).set_limit(limit)
        return 1

    def detail(self) -> str:
        return _("New limit: %(limit)s.") % {"limit": self.permits}

    def said(self, number: int) -> str:
        return _("The limit was set.")


class LatchPage(FactsPage):
    """One latch."""

    section = "locks"
    kinds = ("latch",)

    def get(self, request: HttpRequest) -> HttpResponse:
        found = perform(conf.alias(), read_latches(current_prefix(), [self.thing.name]))
        if not found:
            raise Problem(NOT_FOUND)
        info = found[0].info
        state = Cell(_("open"), tone="good") if not info.remaining else Cell(_("closed"))
        facts = [
            (_("State"), state),
            (_("Events"), to_cell(info.count)),
            (_("Missing"), to_cell(info.remaining)),
            (_("Round"), Cell(str(info.round))),
        ]
        return self.described(facts, **explained(self, self.thing))


class Release(ChangePage):
    """Releases a lock, or a permit of a semaphore, for the holder whose token is the parameter `holder`."""

    section = "locks"
    action = "release"
    label = gettext_lazy("Release")
    kinds = ("lock", "rwlock", "semaphore")
    limit = 1

    @property
    def holder(self) -> str:
        """The holder that the page has shown, percent-encoded in forms."""
        return unquote(self.request.POST.get("holder", ""))

    def question(self, things: Sequence[Thing]) -> Question:
        thing = only(things)
        return Question(
            _("Release this permit?") if thing.kind == "semaphore" else _("Release this lock?"),
            _(
                "The holder loses it, although it may still be working, and the first waiting client "
                "acquires it. Release it only if the holder hangs or has ended."
            ),
            str(self.label),
            [(_("Name"), to_cell(thing.name)), *self.known(thing)],
            is_danger=True,
            things=things,
        )

    def known(self, thing: Thing) -> list[tuple[str, Cell]]:
        """What is known of the holder and of those that wait."""
        if thing.kind == "semaphore":
            waiting = stored_semaphore(thing).info.waiting
            return [(_("Holder"), to_cell(client(self.holder))), (_("Waiting"), to_cell(waiting))]
        if thing.kind == "rwlock":
            waiting = ReadWriteLock(thing.name).info().waiting
            return [(_("Holder"), to_cell(client(self.holder))), (_("Waiting"), to_cell(waiting))]
        _lock, info = held(thing)
        if info.holder != self.holder:
            raise Problem(OTHER_HOLDER)
        return [
            (_("Holder"), to_cell(client(info.holder))),
            (_("Held since"), to_cell(held_since(info.acquired_at, info.read_at))),
            (_("Lease left"), to_cell(lease_left(info))),
            (_("Waiting"), to_cell(info.waiting)),
        ]

    def apply(self, things: Sequence[Thing]) -> int:
        thing = only(things)
        if thing.kind == "semaphore":
            stored_semaphore(thing)
            if not Semaphore(thing.name, 1).release_holder(self.holder):
                raise Problem(NO_HOLDER)
        elif thing.kind == "rwlock":
            if not ReadWriteLock(thing.name).release_holder(self.holder):
                raise Problem(NO_HOLDER)
        elif not held(thing)[0].release_holder(self.holder):
            raise Problem(OTHER_HOLDER)
        return 1

    def detail(self) -> str:
        return _("Held by %(holder)s.") % {"holder": printable(self.holder)}

    def said(self, number: int) -> str:
        return _("It was released.")


def held(thing: Thing) -> tuple[Lock, LockInfo]:
    """The lock, and its state. Raises the Problem if nobody holds it."""
    lock = lock_of(thing)
    info = lock.info()
    # Without a fence, the key may be one of something else.
    if info.holder is None or not info.fence:
        raise Problem(NOT_HELD)
    return lock, info
