"""What a key has used of a rate limit."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from ...core.encoding import current_prefix
from ...core.operations import Clock, Steps
from ..common.arguments import to_datetime
from ..common.things import Thing
from ..rates.listing import is_known, read_use
from ..rates.rate_limit import RateKeys, declared_limits
from .explanation import make
from .sights import Sight, Subject, ask


def rate_subject(thing: Thing, using: str) -> Subject:
    """A key of a rate limit."""
    return Subject(thing, using, partial(_read_rate, thing, using))


def _read_rate(thing: Thing, using: str) -> Steps[Sight]:
    prefix, name = current_prefix(), thing.where
    declared = [*declared_limits().values(), *(ask("limits_hook") or ())]
    known = {one.name: one for one in declared if (one._using, one._prefix) == (using, prefix)}
    clock = yield Clock(RateKeys(prefix, name, thing.name, 0).level)
    use = yield from read_use(using, prefix, known, name, thing.name)
    if use is None:
        cause = make("rate_free", thing) if is_known(known, name) else make("rate_unknown", thing)
    elif use.rate is None:
        cause = make("rate_unknown", thing, used=use.used)
    elif use.is_at_limit:
        until = to_datetime(Clock.milliseconds(clock)) + timedelta(seconds=use.retry_after)
        cause = make("rate_used_up", thing, count=use.rate.limit, period=use.rate.period, until=until)
    else:
        cause = make("rate_free", thing, left=use.remaining, count=use.rate.limit, period=use.rate.period)
    return Sight([cause])
