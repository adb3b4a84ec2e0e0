"""Rate limits: how often each key, such as a user or an address, may be used in a period."""

from __future__ import annotations

import logging
import os
import re
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ... import conf
from ...core.commands import Argument
from ...core.encoding import FORMAT, encoded
from ...core.encoding import name as checked
from ...core.operations import Command, Script, Service, Steps, asynchronous, operation
from ...core.outcome import deadline as limit_time
from ...errors import InvalidArgument, OutcomeUnknown, Unavailable
from ..common.arguments import Duration, count, integer, milliseconds, request

logger = logging.getLogger(__name__)

Algorithm = Literal["gcra", "window"]
OnOutage = Literal["raise", "allow", "deny"]

#: maximum number of uses per period, and of a burst
MAX_LIMIT = 10**6
#: the same for "window", which stores each use
MAX_WINDOW_LIMIT = 10_000
#: maximum number of limits that a call checks together
MAX_RATES = 10
#: capacity times period (ms): above it, numbers in Lua are not exact
MAX_LEVEL = 2**53
#: seconds for which Redis may be away before "allow" or "deny" decides, unless the limit says otherwise
OUTAGE_DEADLINE = 1.0
#: seconds after which a request that was denied because of an outage should be repeated
OUTAGE_RETRY = 1.0

_RATE = re.compile(r"\s*(\d{1,9})\s*/\s*(\d{0,9})\s*([a-z]+)\s*", re.ASCII)
#: seconds
_UNITS = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86_400),
}


@dataclass(frozen=True, slots=True)
class Rate:
    """A number of uses per period."""

    limit: int
    """The number of uses."""
    period: float
    """The period: seconds."""

    def __str__(self) -> str:
        return f"{self.limit}/{self.period:.10g}s"


def parse_rates(limit: int | str | Sequence[str], per: Duration | None = None) -> tuple[Rate, ...]:
    """The limits in a text or in several, or one of `limit` uses per `per`; the shortest period first.

    >>> [str(rate) for rate in parse_rates("100/day, 5/m")]
    ['5/60s', '100/86400s']
    >>> parse_rates(3, 7200)
    (Rate(limit=3, period=7200.0),)

    A text has the form NUMBER/PERIOD, where PERIOD is a unit (s, m, h, d, or its name), with or without a
    number before it: "5/m", "10/30s", "1000/2 hours". Raises TypeError or InvalidArgument.
    """
    if isinstance(limit, int):
        if per is None:
            raise InvalidArgument(f'a limit of {limit} needs per=: a period. Or write "{limit}/m".')
        return (_rate(limit, milliseconds(per, "per", minimum=1)),)
    if not isinstance(limit, Sequence):
        raise TypeError(f'limit must be an int, a str such as "5/m", or several, not {type(limit).__name__}.')
    if per is not None:
        raise InvalidArgument("per= needs a limit that is an int: a text contains its period.")
    texts = limit.split(",") if isinstance(limit, str) else limit
    rates = sorted((_parse(text) for text in texts), key=lambda rate: rate.period)
    if not 1 <= len(rates) <= MAX_RATES:
        raise InvalidArgument(f"limit must contain between 1 and {MAX_RATES} limits, not {len(rates)}.")
    if len({rate.period for rate in rates}) < len(rates):
        raise InvalidArgument("limit contains two limits of the same period: keep the lower one.")
    return tuple(rates)


def _parse(text: str) -> Rate:
    if not isinstance(text, str):
        raise TypeError(f'limit must contain texts such as "5/m", not {type(text).__name__}.')
    found = _RATE.fullmatch(text.lower())
    if found is None or found[3] not in _UNITS:
        raise InvalidArgument(f'limit must have a form such as "5/m", "10/30s" or "100/day", not {text!r}.')
    return _rate(int(found[1]), milliseconds(int(found[2] or 1) * _UNITS[found[3]], "period", minimum=1))


def _rate(limit: int, period_ms: int) -> Rate:
    return Rate(integer(limit, "limit", minimum=1, maximum=MAX_LIMIT), period_ms / 1000)


class RateKeys:
    """The keys of one key of a rate limit, in one slot. `period`: the longest one of the limit, ms."""

    def __init__(self, prefix: str, name: str, key: str, period: int) -> None:
        self._period = period
        self._tag = f"{prefix}:{FORMAT}:{{rate:{encoded(name)}:{encoded(key)}}}"

    @property
    def level(self) -> str:
        """HASH: what the algorithm "gcra" counts, see _levels.lua. Expires when all uses are over, but not
        before a repeated request must be recognized."""
        return self._tag + ":level"

    @property
    def uses(self) -> str:
        """LIST of µs and request, of each use that the algorithm "window" counts in this period. Expires a
        period after the latest use."""
        return f"{self._tag}:uses:{self._period}"

    @property
    def refunds(self) -> str:
        """LIST: the latest requests of "window" that took back uses, up to 8. Expires when a repeat need not
        be recognized any more."""
        return self._tag + ":refunds"


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """Whether a use was allowed. In a condition, it is true if it was."""

    allowed: bool
    """Whether the use was allowed, and counted."""
    remaining: int
    """How many more uses would be allowed now."""
    retry_after: float
    """Seconds after which this use can be allowed; 0.0 if it was."""
    reset_after: float
    """Seconds after which the whole limit is available again, without further uses."""
    rate: Rate
    """The tightest of the limits: that with the fewest remaining uses, or the longest time to wait."""
    known: bool = True
    """False: Redis was not available, and `on_outage` decided; the numbers mean nothing then."""

    def __bool__(self) -> bool:
        return self.allowed


#: name → the oldest rate limit of this name in this process
_known: weakref.WeakValueDictionary[str, RateLimit] = weakref.WeakValueDictionary()


def declared_limits() -> dict[str, RateLimit]:
    """The rate limits of this process by their names, for lists of keys."""
    found = (reference() for reference in _known.valuerefs())
    return {limit.name: limit for limit in found if limit is not None}


class RateLimit(Service):
    """Limits how often each key, such as a user or an address, may be used in a period.

    >>> login = RateLimit("login", "5/m")
    >>> login.take("ann").allowed, login.take("ann").remaining
    (True, 3)
    >>> RateLimit("export", "1/m, 10/d").take("ann").rate
    Rate(limit=1, period=60.0)

    `limit` is an int with `per` (seconds or a timedelta), a text such as "5/m", or several, which allow a use
    only if all have room for it. Each process that uses a limit must give it the same name and limits.

    Two algorithms, both exact by the clock of the server, in one script:

    - "gcra" (generic cell rate algorithm): up to `burst` uses at once, then evenly, one per period / limit.
      So each period has at most `burst` + `limit` uses; `burst` is the limit, unless another is given. It
      takes the same memory for any limit.
    - "window": no period, whenever it begins, has more uses than the limit. Stores each use: the maximum of
      a limit is 10,000.

    If the clock is set back, what was used counts for a period from then on at most, and no more is allowed.
    A limit whose number is changed applies at once to what was used before: "gcra" keeps the share that was
    used up. A new period of "gcra", or a new longest period of "window", begins anew.

    `on_outage`: what is decided if Redis is not available for `deadline` seconds: "raise" (Unavailable or
    OutcomeUnknown; the default of the deadline is COMMAND_DEADLINE), "allow" or "deny" (1 s).
    """

    def __init__(
        self,
        name: str,
        limit: int | str | Sequence[str],
        *,
        per: Duration | None = None,
        algorithm: Algorithm = "gcra",
        burst: int | None = None,
        on_outage: OnOutage = "raise",
        deadline: Duration | None = None,
        using: str | None = None,
    ) -> None:
        super().__init__(using=using)
        self.name = checked(name, "name")
        #: the limits, the shortest period first
        self.rates = parse_rates(limit, per)
        if algorithm not in ("gcra", "window"):
            raise InvalidArgument(f'algorithm must be "gcra" or "window", not {algorithm!r}.')
        if on_outage not in ("raise", "allow", "deny"):
            raise InvalidArgument(f'on_outage must be "raise", "allow" or "deny", not {on_outage!r}.')
        self.algorithm: Algorithm = algorithm
        capacities = self._capacities(burst)
        #: maximum of a cost
        self.capacity = min(capacities)
        self._on_outage = on_outage
        #: seconds; None: COMMAND_DEADLINE
        self._deadline = None if on_outage == "raise" else OUTAGE_DEADLINE
        if deadline is not None:
            self._deadline = milliseconds(deadline, "deadline", minimum=1) / 1000
        self._limits = self._arguments(capacities)
        self._longest = longest_period(self)
        #: whether the latest call got a reply: an outage is logged once
        self._is_available = True
        if self.name not in _known:  # an object that is made for one call doesn't displace one that stays
            _known[self.name] = self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {', '.join(map(str, self.rates))!r})"

    def _capacities(self, burst: int | None) -> list[int]:
        """How many uses each limit allows at once."""
        highest = max(rate.limit for rate in self.rates)
        if self.algorithm == "window":
            if burst is not None:
                raise InvalidArgument('burst= needs algorithm="gcra".')
            if highest > MAX_WINDOW_LIMIT:
                raise InvalidArgument(
                    f'limit must be at most {MAX_WINDOW_LIMIT} with "window", which stores each use, not '
                    f'{highest}: use "gcra".'
                )
        elif burst is not None:
            if len(self.rates) > 1:
                raise InvalidArgument("burst= needs a single limit.")
            return [integer(burst, "burst", minimum=1, maximum=MAX_LIMIT)]
        return [rate.limit for rate in self.rates]

    def _arguments(self, capacities: Iterable[int]) -> list[Argument]:
        """The limits as the scripts take them."""
        arguments: list[Argument] = []
        for rate, capacity in zip(self.rates, capacities, strict=True):
            period = round(rate.period * 1000)
            if capacity * period > MAX_LEVEL:
                raise InvalidArgument(f"{capacity} uses in {rate.period:g} s are more than can be counted.")
            arguments += [rate.limit, period, *([capacity] if self.algorithm == "gcra" else [])]
        return arguments

    def take(self, key: str, cost: int = 1, *, request_id: str | None = None) -> Decision:
        """Use `key`, as often as `cost` at once; or not at all if any of the limits has no room for that.

        With the same `request_id`, a call that was allowed is repeated without another use: for at least
        REQUEST_WINDOW, unless the key was used 8 times ("gcra") or 200 times ("window") since. Whoever
        chooses it can repeat a use, so it must not come from those who are limited.

        >>> searches = RateLimit("search", 10, per=60)
        >>> searches.take("ann", 10).remaining
        0
        >>> decision = searches.take("ann")
        >>> decision.allowed, 5 < decision.retry_after <= 6, 59 < decision.reset_after <= 60
        (False, True, True)

        Raises InvalidArgument if `cost` is more than the limit or the burst; Unavailable or OutcomeUnknown
        with on_outage="raise".
        """
        script = self._taking(key, cost, request_id)
        if self._deadline is None:
            return self._take(script)
        with limit_time(self._deadline):
            return self._take(script)

    async def atake(self, key: str, cost: int = 1, *, request_id: str | None = None) -> Decision:
        """An async version of `take`."""
        script = self._taking(key, cost, request_id)
        if self._deadline is None:
            return await self._atake(script)
        with limit_time(self._deadline):
            return await self._atake(script)

    def peek(self, key: str, cost: int = 1) -> Decision:
        """What `take` would decide now, without using `key`.

        >>> RateLimit("search", 10, per=60).peek("bob", 3).remaining
        10
        """
        script = peek_script(self, key, cost)
        if self._deadline is None:
            return self._peek(script)
        with limit_time(self._deadline):
            return self._peek(script)

    async def apeek(self, key: str, cost: int = 1) -> Decision:
        """An async version of `peek`."""
        script = peek_script(self, key, cost)
        if self._deadline is None:
            return await self._apeek(script)
        with limit_time(self._deadline):
            return await self._apeek(script)

    @operation
    def reset(self, key: str) -> Steps[bool]:
        """Forget what `key` has used. Returns whether there was anything."""
        keys = self._keys(key)
        return bool((yield Command("DEL", keys.level, keys.uses, keys.refunds)))

    areset = asynchronous(reset)

    @operation
    def refund(self, key: str, cost: int = 1, *, request_id: str | None = None) -> Steps[bool]:
        """Take back up to `cost` uses of `key`, the latest ones, for example because what they were for has
        failed. Returns False if none counts any more.

        >>> login = RateLimit("login", "5/m")
        >>> login.take("ann").remaining, login.refund("ann"), login.peek("ann").remaining
        (4, True, 5)

        `request_id` makes it repeatable, as in `take`.
        """
        keys, uses, limits = self._keys(key), count(cost, "cost", maximum=MAX_LIMIT), self._limits
        remembered = _remembered("refund", request_id)
        if self.algorithm == "gcra":
            script = Script("rates/level_refund", [keys.level], [uses, *remembered, *limits])
        else:
            args = [uses, *remembered, limits[-1]]
            script = Script("rates/window_refund", [keys.uses, keys.refunds], args)
        return bool((yield script))

    arefund = asynchronous(refund)

    @operation
    def _take(self, script: Script) -> Steps[Decision]:
        return (yield from self._decide(script))

    _atake = asynchronous(_take)

    @operation
    def _peek(self, script: Script) -> Steps[Decision]:
        return (yield from self._decide(script))

    _apeek = asynchronous(_peek)

    def _decide(self, script: Script) -> Steps[Decision]:
        try:
            reply = yield script
        except (Unavailable, OutcomeUnknown) as error:
            if self._on_outage == "raise":
                raise
            return self._without_redis(error)
        self._is_available = True
        return parse_decision(reply, self.rates)

    def _without_redis(self, error: Exception) -> Decision:
        """What `on_outage` decides."""
        allowed = self._on_outage == "allow"
        if self._is_available:
            self._is_available = False
            verb = "allowed" if allowed else "denied"
            logger.warning("Rate limit %r: all uses are %s until Redis replies: %s", self.name, verb, error)
        wait = 0.0 if allowed else OUTAGE_RETRY
        return Decision(
            allowed=allowed, remaining=0, retry_after=wait, reset_after=wait, rate=self.rates[0], known=False
        )

    def _keys(self, key: str) -> RateKeys:
        return RateKeys(self._prefix, self.name, checked(key, "key"), self._longest)

    def _taking(self, key: str, cost: int, request_id: str | None) -> Script:
        """The step of `take`."""
        args = [self._cost(cost), *_remembered("take", request_id), *self._limits]
        if self.algorithm == "gcra":
            return Script("rates/level_take", [self._keys(key).level], args)
        return Script("rates/window_take", [self._keys(key).uses], args)

    def _cost(self, cost: int) -> int:
        return integer(cost, "cost", minimum=1, maximum=self.capacity)


def peek_script(limit: RateLimit, key: str, cost: int = 1) -> Script:
    """The step of `peek`."""
    keys, args = limit._keys(key), [limit._cost(cost), *limit._limits]
    if limit.algorithm == "gcra":
        return Script("rates/level_peek", [keys.level], args)
    return Script("rates/window_peek", [keys.uses], args)


def longest_period(limit: RateLimit) -> int:
    """The longest period of a limit: ms."""
    return round(limit.rates[-1].period * 1000)


def parse_decision(reply: Sequence[int], rates: Sequence[Rate]) -> Decision:
    """The reply of the scripts that take and peek."""
    allowed, remaining, wait, reset, tightest = reply
    return Decision(
        allowed=bool(allowed),
        remaining=remaining,
        retry_after=wait / 1000,
        reset_after=reset / 1000,
        rate=rates[tightest - 1],
    )


def _remembered(verb: Literal["take", "refund"], request_id: str | None) -> tuple[str, int]:
    """A request as it is stored, which no number equals; and the ms for which it is remembered at least: as
    long as callers may repeat theirs, or as long as an operation is repeated."""
    settings = conf.current()
    if request_id is None:
        return verb[0] + os.urandom(6).hex(), round(settings.COMMAND_DEADLINE * 1000)
    return f"{verb}:{request(request_id)}", round(settings.REQUEST_WINDOW * 1000)
