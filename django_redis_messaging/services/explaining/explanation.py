"""Explanations, their causes, and what these say in the language of whoever reads them.

A cause consists of a code and its parameters; its text is made when it is read, so that an explanation can be
made in one language and shown in another one. docs/explain.md lists the codes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import reduce
from typing import Any, NamedTuple

from django.utils.functional import Promise
from django.utils.timezone import localtime
from django.utils.translation import gettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from ...core.encoding import printable
from ..common.things import Thing

#: characters of a text, such as the reason of a pause, that are shown
MAX_TEXT = 200
#: ends of the units in which a duration is shown: seconds, and the seconds of the unit
_UNITS = (
    (90, 1, _("%(count)s s")),
    (90 * 60, 60, _("%(count)s min")),
    (48 * 3600, 3600, _("%(count)s h")),
    (float("inf"), 86_400, _("%(count)s days")),
)


class Wording(NamedTuple):
    """What a cause says where it has certain parameters."""

    #: with the parameters by `%`, which for a text of `ngettext_lazy` chooses the form
    text: Any
    #: what ends it; empty: nothing does, or nothing has to
    ends: str | Promise = ""
    #: these must not be empty
    needs: tuple[str, ...] = ()


_RELEASE = _("Until the holder releases it, or its lease ends at %(lease_until)s.")
_RELEASE_ONLY = _(
    "Until the holder releases it. It has no lease: if the holder is gone, release it yourself."
)
_RETURN = _("Until its lease ends at %(lease_until)s; then another worker can claim it.")
_WORKERS = _("Until a worker that serves this queue is started.")
_EVENTS = _("Until the consumer handles them, or its position expires: a week after the consumer has ended.")
_CONSUMER = _("Until a process consumes under this name, or the consumer is released.")

#: code → wordings; the first one whose parameters are there counts
WORDINGS: dict[str, Sequence[Wording]] = {
    # of a job
    "unknown": [Wording(_("nothing is stored of %(thing)s: it never existed, or was removed"))],
    "not_due": [Wording(_("%(thing)s is not due until %(until)s"), _("Until it is due."))],
    "retrying": [
        Wording(
            _("%(thing)s failed in attempt %(attempt)s with %(error)s and is not due until %(until)s"),
            _("Until the next attempt is due."),
            ("error",),
        ),
        Wording(
            _("%(thing)s failed in attempt %(attempt)s and is not due until %(until)s"),
            _("Until the next attempt is due."),
        ),
    ],
    "queue_paused": [
        Wording(
            _("%(thing)s has been paused by %(by)s since %(since)s: %(reason)s"),
            _("Until the queue is resumed."),
            ("by", "reason"),
        ),
        Wording(
            _("%(thing)s has been paused since %(since)s: %(reason)s"),
            _("Until the queue is resumed."),
            ("reason",),
        ),
        Wording(
            _("%(thing)s has been paused by %(by)s since %(since)s"),
            _("Until the queue is resumed."),
            ("by",),
        ),
        Wording(_("%(thing)s has been paused since %(since)s"), _("Until the queue is resumed.")),
    ],
    "task_paused": [
        Wording(
            _("calls of %(task)s have been paused by %(by)s since %(since)s: %(reason)s"),
            _("Until the task is resumed."),
            ("by", "reason"),
        ),
        Wording(
            _("calls of %(task)s have been paused since %(since)s: %(reason)s"),
            _("Until the task is resumed."),
            ("reason",),
        ),
        Wording(
            _("calls of %(task)s have been paused by %(by)s since %(since)s"),
            _("Until the task is resumed."),
            ("by",),
        ),
        Wording(
            _("calls of %(task)s have been paused since %(since)s"),
            _("Until the task is resumed."),
        ),
    ],
    "rate_used_up": [
        Wording(
            _("the rate %(rate)s, of which %(thing)s needs a token, is used up: %(count)s per %(period)s"),
            _("Until the next token is free at %(until)s."),
            ("rate",),
        ),
        Wording(
            _("%(thing)s is used up: %(count)s per %(period)s"),
            _("Until the next use is allowed at %(until)s."),
        ),
    ],
    "no_worker": [Wording(_("no live worker serves %(thing)s"), _WORKERS)],
    "no_listener": [
        Wording(
            _("no live listener serves %(thing)s"),
            _("Until a listener with a handler for this namespace is started."),
        )
    ],
    "behind": [
        Wording(
            _("others that are ready are before %(thing)s: %(jobs)s, about %(seconds)s at the present rate"),
            _("Until they are claimed; more workers shorten that."),
            ("seconds",),
        ),
        Wording(
            _("others that are ready are before %(thing)s: %(jobs)s"),
            _("Until they are claimed; more workers shorten that."),
        ),
    ],
    "next": [Wording(_("%(thing)s is the next to be claimed"), _("Until a consumer claims it."))],
    "running": [
        Wording(
            _("%(thing)s has been running on %(worker)s since %(since)s, attempt %(attempt)s"),
            _("Until it ends, or is cancelled."),
            ("worker",),
        ),
        Wording(
            _("%(thing)s has been leased since %(since)s, attempt %(attempt)s"),
            _("Until its consumer settles it, or the lease ends at %(lease_until)s."),
            ("lease_until",),
        ),
        Wording(
            _("%(thing)s has been leased since %(since)s, attempt %(attempt)s"),
            _("Until its consumer settles it."),
        ),
    ],
    "cancelling": [
        Wording(
            _("%(thing)s is being cancelled"),
            _("Until its worker interrupts it, within seconds."),
        )
    ],
    "worker_lost": [
        Wording(
            _("%(thing)s was started by %(worker)s, which no longer sends heartbeats"),
            _RETURN,
            ("worker", "lease_until"),
        ),
        Wording(
            _("%(thing)s was started by %(worker)s, which no longer sends heartbeats"),
            _("Until its lease ends; then another worker can claim it."),
        ),
    ],
    "lease_expired": [
        Wording(
            _("the lease of %(thing)s ended at %(lease_until)s"),
            _("Until the next claim in its queue puts it back."),
        )
    ],
    "dead": [
        Wording(
            ngettext_lazy(
                "%(thing)s has been dead since %(since)s, after %(attempts)s attempt: %(reason)s",
                "%(thing)s has been dead since %(since)s, after %(attempts)s attempts: %(reason)s",
                "attempts",
            ),
            _("Until it is redriven."),
            ("reason",),
        ),
        Wording(
            ngettext_lazy(
                "%(thing)s has been dead since %(since)s, after %(attempts)s attempt",
                "%(thing)s has been dead since %(since)s, after %(attempts)s attempts",
                "attempts",
            ),
            _("Until it is redriven."),
        ),
    ],
    "succeeded": [Wording(_("%(thing)s succeeded at %(since)s"))],
    "cancelled": [Wording(_("%(thing)s was cancelled at %(since)s"))],
    "expired": [Wording(_("%(thing)s expired at %(since)s, before it was started"))],
    # of a periodic task
    "overdue": [
        Wording(
            _("%(thing)s was due at %(since)s and has not been enqueued"),
            _("Until a poller enqueues a call, unless the queue is full or missed times are left out."),
        )
    ],
    "no_poller": [
        Wording(
            _("no poller has looked at %(thing)s since %(since)s"),
            _("Until a poller is started."),
            ("since",),
        ),
        Wording(_("no poller has looked at %(thing)s yet"), _("Until a poller is started.")),
    ],
    "schedule_paused": [
        Wording(_("%(thing)s has been paused since %(since)s"), _("Until the schedule is resumed."))
    ],
    "schedule_broken": [
        Wording(
            _("%(thing)s can't be enqueued: this code doesn't know %(task)s, or can't read the schedule"),
            _("Until the task is defined, or the schedule is changed or removed."),
        )
    ],
    "latest_call": [Wording(_("the latest call of %(thing)s, that of %(occurrence)s, is not done"))],
    # of a worker
    "worker_idle": [Wording(_("%(thing)s is running nothing"))],
    "worker_busy": [Wording(_("%(thing)s is running jobs that are not listed: %(running)s"))],
    "not_consuming": [
        Wording(
            _("%(thing)s is running nothing, and has asked for no jobs since its heartbeat before"),
            _("Until it asks again, or is restarted."),
        )
    ],
    "worker_silent": [
        Wording(
            _("%(thing)s has sent no heartbeat since %(since)s"),
            _("Until another worker claims its jobs, when their leases end."),
        )
    ],
    # of locks and permits
    "lock_held": [
        Wording(
            _("%(thing)s has been held by %(holder)s since %(since)s"),
            _RELEASE,
            ("holder", "since", "lease_until"),
        ),
        Wording(_("%(thing)s has been held by %(holder)s since %(since)s"), _RELEASE_ONLY, ("since",)),
        Wording(_("%(thing)s is held by %(holder)s"), _RELEASE, ("lease_until",)),
        Wording(_("%(thing)s is held by %(holder)s"), _("Until the holder ends, and releases it.")),
    ],
    "lock_read": [
        Wording(
            _("clients read %(thing)s: %(held)s, one of them is %(holder)s"),
            _("Until all readers release it, or their leases end at %(lease_until)s."),
        )
    ],
    "lock_free": [Wording(_("%(thing)s is free"))],
    "permits_held": [
        Wording(
            _("all permits of %(thing)s are held: %(held)s of %(limit)s, one by %(holder)s"),
            _("Until a holder releases one, its lease ends, or the limit is raised."),
            ("holder", "limit"),
        ),
        Wording(
            _("%(thing)s has no free permit: %(held)s of %(limit)s are held"),
            _("Until the limit is raised."),
            ("limit",),
        ),
        Wording(
            _("permits of %(thing)s are held: %(held)s, one by %(holder)s"),
            _("Until a holder releases one, or its lease ends."),
        ),
    ],
    "permits_free": [
        Wording(_("%(thing)s has free permits: %(held)s of %(limit)s are held"), needs=("limit",)),
        Wording(ngettext_lazy("%(thing)s has %(held)s holder", "%(thing)s has %(held)s holders", "held")),
    ],
    # of latches and rate limits
    "latch_closed": [
        Wording(
            _("%(thing)s is closed; events that are missing: %(remaining)s of %(count)s"),
            _("Until they are counted. Without any, it expires at %(expires_at)s."),
        )
    ],
    "latch_open": [Wording(_("%(thing)s is open: all of its %(count)s events were counted"))],
    "rate_free": [
        Wording(_("%(thing)s is free: %(left)s of %(count)s per %(period)s are left"), needs=("left",)),
        Wording(_("%(thing)s is free: none of its uses count any more")),
    ],
    "rate_unknown": [
        Wording(
            ngettext_lazy(
                "this process doesn't know the limit of %(thing)s: %(used)s use counts",
                "this process doesn't know the limit of %(thing)s: %(used)s uses count",
                "used",
            ),
            needs=("used",),
        ),
        Wording(_("this process doesn't know the limit of %(thing)s")),
    ],
    # of a queue
    "workers_busy": [
        Wording(
            _("all workers that serve %(thing)s are running jobs: %(running)s on %(workers)s"),
            _("Until one of them ends, or more workers are started."),
        )
    ],
    "backlog": [
        Wording(
            _("jobs of %(thing)s are ready: %(ready)s, for about %(seconds)s at the present rate"),
            _("Until they are claimed; more workers shorten that."),
            ("seconds",),
        ),
        Wording(_("jobs of %(thing)s are ready: %(ready)s"), _("Until they are claimed.")),
    ],
    "parked": [
        Wording(
            _("jobs of %(thing)s wait for locks, permits, rates or the end of a pause: %(parked)s"),
            _("Until what they need is free."),
        )
    ],
    "nothing_ready": [
        Wording(
            _("no job of %(thing)s is ready; not due yet: %(delayed)s"),
            _("Until something is due, or is pushed."),
        )
    ],
    # of readers
    "unread": [
        Wording(
            ngettext_lazy(
                "%(member)s has not read %(unread)s message of %(thing)s, muted until %(muted_until)s",
                "%(member)s has not read %(unread)s messages of %(thing)s, muted until %(muted_until)s",
                "unread",
            ),
            _("Until the member reads and acks, or leaves; limits remove the oldest."),
            ("muted_until",),
        ),
        Wording(
            ngettext_lazy(
                "%(member)s has not read %(unread)s message of %(thing)s; stored: %(kept)s",
                "%(member)s has not read %(unread)s messages of %(thing)s; stored: %(kept)s",
                "unread",
            ),
            _("Until the member reads and acks, or leaves; limits remove the oldest."),
        ),
    ],
    "hidden_readers": [
        Wording(
            ngettext_lazy(
                "of the slowest readers of %(thing)s, %(members)s hides what they have read",
                "of the slowest readers of %(thing)s, %(members)s hide what they have read",
                "members",
            )
        )
    ],
    "mail_unread": [
        Wording(
            ngettext_lazy(
                "%(unread)s mail of %(thing)s is unread; last fetched at %(fetched_at)s",
                "%(unread)s mails of %(thing)s are unread; last fetched at %(fetched_at)s",
                "unread",
            ),
            _("Until the user fetches and reads them."),
            ("fetched_at",),
        ),
        Wording(
            ngettext_lazy(
                "%(unread)s mail of %(thing)s is unread; never fetched",
                "%(unread)s mails of %(thing)s are unread; never fetched",
                "unread",
            ),
            _("Until the user fetches and reads them."),
        ),
    ],
    "events_unread": [
        Wording(
            ngettext_lazy(
                "the consumer %(consumer)s has not handled %(events)s event of %(thing)s (stored: "
                "%(kept)s); the latest one that it has handled was published at %(since)s",
                "the consumer %(consumer)s has not handled %(events)s events of %(thing)s (stored: "
                "%(kept)s); the latest one that it has handled was published at %(since)s",
                "events",
            ),
            _EVENTS,
            ("since",),
        ),
        Wording(
            _(
                "the consumer %(consumer)s has handled no events of %(thing)s yet; waiting: %(events)s, "
                "stored: %(kept)s"
            ),
            _EVENTS,
        ),
    ],
    "search_ended": [
        Wording(
            _("%(thing)s may have further consumers: the search for them ended before its end"),
            _("Its page in the console searches further."),
        )
    ],
    "files_unread": [
        Wording(
            ngettext_lazy(
                "the consumer %(consumer)s has not acked %(files)s file of %(thing)s, "
                "published at %(since)s; its lease is held by %(holder)s",
                "the consumer %(consumer)s has not acked %(files)s files of %(thing)s, the first "
                "published at %(since)s; its lease is held by %(holder)s",
                "files",
            ),
            _("Until it acks them."),
            ("holder",),
        ),
        Wording(
            ngettext_lazy(
                "the consumer %(consumer)s has not acked %(files)s file of %(thing)s, "
                "published at %(since)s; nobody holds its lease, and it was seen last at %(seen_at)s",
                "the consumer %(consumer)s has not acked %(files)s files of %(thing)s, the first "
                "published at %(since)s; nobody holds its lease, and it was seen last at %(seen_at)s",
                "files",
            ),
            _CONSUMER,
            ("seen_at",),
        ),
        Wording(
            ngettext_lazy(
                "the consumer %(consumer)s has not acked %(files)s file of %(thing)s, "
                "published at %(since)s; nobody holds its lease, and it was never seen",
                "the consumer %(consumer)s has not acked %(files)s files of %(thing)s, the first "
                "published at %(since)s; nobody holds its lease, and it was never seen",
                "files",
            ),
            _CONSUMER,
        ),
    ],
    "consumers_missing": [
        Wording(
            _("%(thing)s keeps its files for consumers that have not come yet: %(consumers)s"),
            _("Until they come, or their places are released."),
        )
    ],
    "all_read": [Wording(_("nothing of %(thing)s is unread"))],
    # of the chain
    "deadlock": [
        Wording(
            _("these wait for one another in a circle: %(things)s"),
            _("Until a lease among them ends, or somebody releases or cancels one of them."),
        )
    ],
    "more": [Wording(_("the chain goes on with %(thing)s"), _("Explain that one."))],
}


@dataclass(frozen=True, slots=True)
class Cause:
    """One step of an explanation."""

    code: str
    """See docs/explain.md."""
    thing: Thing
    """What the step is about."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Texts, numbers, moments (aware datetimes), lists of texts, or None where something is unknown."""

    @property
    def text(self) -> str:
        """The cause as a part of a sentence, in the active language."""
        return str(self._wording.text % self._shown)

    @property
    def ends(self) -> str:
        """What would end it, in the active language; empty where nothing has to end."""
        return str(self._wording.ends) % self._shown

    def to_json(self) -> dict[str, Any]:
        """The cause as JSON values: code, params, text, thing, ends. Moments are ISO 8601."""
        return {
            "code": self.code,
            "params": {name: _plain(value) for name, value in self.params.items()},
            "text": self.text,
            "thing": str(self.thing),
            "ends": self.ends,
        }

    @property
    def _wording(self) -> Wording:
        found = WORDINGS[self.code]
        known = {name for name, value in self.params.items() if value not in (None, "")}
        return next((one for one in found if known.issuperset(one.needs)), found[-1])

    @property
    def _shown(self) -> dict[str, str | int]:
        shown = {name: _show(name, value) for name, value in self.params.items()}
        return {"thing": _show("thing", str(self.thing)), **shown}


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why something waits: the causes, each of which is the reason for the one before it, or another reason
    of the same thing."""

    causes: tuple[Cause, ...]

    @property
    def text(self) -> str:
        """All causes in one sentence, in the active language."""
        joint = gettext("%(before)s; %(after)s")
        texts = [cause.text for cause in self.causes]
        whole = reduce(lambda before, after: joint % {"before": before, "after": after}, texts)
        return gettext("%(sentence)s.") % {"sentence": whole[:1].upper() + whole[1:]}

    def to_json(self) -> dict[str, Any]:
        """The explanation as JSON values: text, and a list of causes."""
        return {"text": self.text, "causes": [cause.to_json() for cause in self.causes]}


def make(code: str, thing: Thing, /, **params: Any) -> Cause:
    """A cause."""
    return Cause(code, thing, params)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return list(value) if isinstance(value, tuple) else value


def _show(name: str, value: Any) -> str | int:
    """A parameter in a text. Whole numbers stay numbers, which choose a plural form."""
    if isinstance(value, datetime):
        return f"{localtime(value):%Y-%m-%d %H:%M:%S}"
    if name in ("seconds", "period") and value is not None:
        return _duration(value)
    if isinstance(value, int):
        return value
    if isinstance(value, tuple):
        return " → ".join(map(printable, value))
    return printable(str(value)[:MAX_TEXT])


def _duration(seconds: float) -> str:
    """A duration in the unit that suits it."""
    size, unit = next((size, unit) for limit, size, unit in _UNITS if seconds < limit)
    return str(unit) % {"count": max(round(seconds / size), 1)}
