"""When a task occurs: at the times of a cron expression, or at an interval.

The moments depend on these values alone, so all pollers agree on them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from django.utils import timezone

from ..errors import ConfigurationError, InvalidArgument
from ..services.common.arguments import Duration, milliseconds

#: ms; the shortest interval
MIN_INTERVAL = 1000
#: ms; the parts of a long time that are searched for its last occurrence, one after the other
SPANS = (3_600_000, 86_400_000, 32 * 86_400_000)
#: ms; no zone changes its offset twice within this time (Morocco does so within five weeks)
MAX_STEP = 7 * 86_400_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def timing(*, cron: str | None, every: Duration | None, tz: str | None) -> Cron | Every:
    """The schedule with these values, of which either `cron` or `every` must be given."""
    if (cron is None) == (every is None):
        raise InvalidArgument("A schedule needs either cron or every.")
    if every is None:
        return Cron(cron or "", tz)
    if tz is not None:
        raise InvalidArgument("tz needs cron: an interval (every) is the same in all time zones.")
    return Every(every)


@dataclass(frozen=True)
class Every:
    """At the multiples of an interval since 1970-01-01 00:00 UTC: clock changes don't affect it.

    >>> schedule = Every(timedelta(minutes=10))
    >>> str(schedule), schedule.next(600_000), schedule.latest(0, 1_799_999)
    ('every 0:10:00', 1200000, 1200000)
    """

    interval: Duration
    _ms: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        ms = milliseconds(self.interval, "every", minimum=MIN_INTERVAL)
        object.__setattr__(self, "_ms", ms)

    def __str__(self) -> str:
        return f"every {timedelta(milliseconds=self._ms)}"

    @property
    def seconds(self) -> float:
        """The interval: seconds."""
        return self._ms / 1000 if self._ms % 1000 else self._ms // 1000

    @property
    def zone(self) -> tzinfo:
        """The site's time zone."""
        return timezone.get_default_timezone()

    def next(self, after: int) -> int:
        """The first occurrence after a moment."""
        return (after // self._ms + 1) * self._ms

    def latest(self, since: int, until: int) -> int | None:
        """The last occurrence after `since` that is not after `until`, or None."""
        found = until - until % self._ms
        return found if found > since else None


@dataclass(frozen=True)
class Cron:
    """At the times of a cron expression, in a time zone; None: the site's.

    Clock changes are handled as by Debian's cron. If the expression has a fixed hour and minute, an
    occurrence in the hour that is skipped in spring takes place right after it, and one in the hour that is
    repeated in autumn takes place once, the first time. If its minute or hour begins with `*`, it follows the
    clock: it occurs in both passes of the repeated hour, and not in the skipped one.

    >>> schedule = Cron("30 2 * * *", "Europe/Berlin")
    >>> (_EPOCH + timedelta(milliseconds=schedule.next(0))).isoformat()
    '1970-01-01T01:30:00+00:00'
    """

    expression: str
    zone_name: str | None = None
    _zone: ZoneInfo | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_zone", _zone(self.zone_name))
        if not isinstance(self.expression, str):
            raise TypeError(f"cron must be a str, not {type(self.expression).__name__}.")
        if len(self.expression.split()) != 5:
            raise InvalidArgument(
                f"cron must have 5 fields, minute, hour, day of the month, month and day of the week, not "
                f"{self.expression!r}."
            )
        simulator, error_class = _cronsim()
        try:
            found = next(simulator(self.expression, datetime.fromtimestamp(time.time(), UTC)), None)
        except error_class as error:
            raise InvalidArgument(f"cron has an invalid value, {self.expression!r}: {error}.") from error
        if found is None:
            raise InvalidArgument(f"cron never occurs within 50 years: {self.expression!r}.")

    def __str__(self) -> str:
        return self.expression

    @property
    def zone(self) -> tzinfo:
        """Its time zone."""
        return self._zone or timezone.get_default_timezone()

    def next(self, after: int) -> int | None:
        """The first occurrence after a moment; None if there is none within 50 years."""
        if self._follows_clock:
            return self._next_by_clock(after)
        simulator, _ = _cronsim()
        local = (_EPOCH + timedelta(milliseconds=after)).astimezone(self.zone)
        for found in simulator(self.expression, local):
            ms: int = (found - _EPOCH) // timedelta(milliseconds=1)
            if ms > after:  # in a repeated hour, the simulator may begin with the first pass
                return ms
        return None

    @property
    def _follows_clock(self) -> bool:
        minute, hour, *_ = self.expression.split()
        return minute.startswith("*") or hour.startswith("*")

    def _next_by_clock(self, after: int) -> int | None:
        """Search the times between two clock changes, which have one offset from UTC, one after the other:
        the simulator leaves out occurrences after a change by half an hour."""
        simulator, _ = _cronsim()
        while True:
            offset = self._offset(after + 1)
            local = (_EPOCH + timedelta(milliseconds=after + offset)).replace(tzinfo=None)
            found = next(simulator(self.expression, local), None)
            if found is None:
                return None
            ms: int = (found.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1) - offset
            change = self._clock_change(after + 1, ms)
            if change is None:
                return ms
            after = change - 1

    def _clock_change(self, since: int, until: int) -> int | None:
        """The first moment after `since`, and not after `until`, at which the offset changes, or None."""
        offset = self._offset(since)
        while since < until:
            end = min(since + MAX_STEP, until)
            if self._offset(end) == offset:
                since = end
                continue
            while end - since > 1:
                middle = (since + end) // 2
                since, end = (middle, end) if self._offset(middle) == offset else (since, middle)
            return end
        return None

    def _offset(self, moment: int) -> int:
        """The offset from UTC at a moment: ms."""
        offset = (_EPOCH + timedelta(milliseconds=moment)).astimezone(self.zone).utcoffset()
        return 0 if offset is None else offset // timedelta(milliseconds=1)

    def latest(self, since: int, until: int) -> int | None:
        """The last occurrence after `since` that is not after `until`, or None."""
        for span in (*SPANS, until - since):
            begin = max(since, until - span)
            found, following = None, self.next(begin)
            while following is not None and following <= until:
                found, following = following, self.next(following)
            if found is not None or begin == since:
                return found
        return None


def _zone(name: str | None) -> ZoneInfo | None:
    if name is None:
        return None
    if not isinstance(name, str):
        raise TypeError(f"tz must be the name of a time zone, or None, not {type(name).__name__}.")
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError) as error:  # ZoneInfoNotFoundError is a KeyError
        raise InvalidArgument(
            f"tz must be the name of a time zone, such as 'Europe/Berlin', not {name!r}."
        ) from error


def _cronsim() -> tuple[Callable[[str, datetime], Any], type[Exception]]:
    try:
        from cronsim import CronSim, CronSimError
    except ImportError as error:
        raise ConfigurationError(
            "cron needs the package cronsim: pip install 'django-redis-messaging[periodic]'. "
            "Schedules with every= work without it."
        ) from error
    return CronSim, CronSimError
