"""What operators ask about rate limits: which keys have used how much, and which are at their limit.

There is no registry of the keys, so they are scanned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple
from urllib.parse import unquote

from ...core.commands import batched
from ...core.encoding import FORMAT, encoded
from ...core.encoding import name as checked
from ...core.operations import Command, Script, Steps, perform
from ...core.topology import literal_pattern
from ...errors import InvalidArgument
from ..common.scanning import scan_keys, scan_page
from .rate_limit import (
    Rate,
    RateKeys,
    RateLimit,
    declared_limits,
    longest_period,
    parse_decision,
    peek_script,
)
from .user_rates import RATES, UserRate, rate_key

#: keys whose states are read in a round trip
PAGE = 100
#: beginning of the names of the app's own limits of users; the action follows
OWN = "user:"


@dataclass(frozen=True, kw_only=True, slots=True)
class RateUse:
    """What a key has used of a rate limit. Only processes that have declared the limit know how much is left:
    elsewhere, `rate`, `remaining` and `reset_after` are None."""

    name: str
    """The name of the limit; "user:" and an action for one of the app's own."""
    key: str
    """The user, the address, or whatever else is limited."""
    used: int
    """The number of uses that count. If the limit isn't known: of all that Redis has counted; with the
    algorithm "gcra", requests count once, whatever their cost."""
    rate: Rate | None = None
    """The tightest of the limits: the one that `remaining` and `retry_after` refer to."""
    remaining: int | None = None
    """How many more uses would be allowed now."""
    retry_after: float = 0.0
    """Seconds until the next use; 0.0 if one would be allowed now, or if the limit isn't known."""
    reset_after: float | None = None
    """Seconds after which the whole limit is available again."""

    @property
    def is_at_limit(self) -> bool:
        """Whether no use would be allowed now."""
        return self.retry_after > 0

    @property
    def urgency(self) -> tuple[float, float, int, str, str]:
        """Sorts uses: those at their limit, the longest wait first; then by the share that is used up; then
        those of limits that are not known."""
        share = -1.0 if self.remaining is None else self.used / max(self.used + self.remaining, 1)
        return -self.retry_after, -share, -self.used, self.name, self.key


class _Found(NamedTuple):
    """A key in Redis, and what it is for."""

    name: str
    key: str
    redis_key: str


class _Known(NamedTuple):
    """How the state of a key is read, if its limit is known."""

    step: Script
    #: each of the limits → how many uses it allows at once
    capacities: dict[Rate, int]


def list_rates(
    using: str,
    prefix: str,
    name: str | None = None,
    key: str | None = None,
    *,
    declared: Sequence[RateLimit] = (),
) -> Iterator[RateUse]:
    """The keys with uses that count, in no order: of all limits, or of this limit or key. `declared`: limits
    that are known besides those that the process has used. Raises Unavailable, InvalidArgument."""
    for found in batched(_find(using, prefix, name, key), PAGE):
        known = declared_limits() | {limit.name: limit for limit in declared}
        yield from perform(using, _read_uses(using, known, found))


class RatePage(NamedTuple):
    """A page of `page_rates`."""

    uses: list[RateUse]
    #: where the next page begins; empty: this is the last one
    cursor: str


def page_rates(
    using: str,
    prefix: str,
    name: str | None = None,
    key: str | None = None,
    cursor: str = "",
    *,
    own: bool = False,
    declared: Sequence[RateLimit] = (),
) -> RatePage:
    """What `list_rates` finds, in pages of bounded cost: see scanning.py. `own`: of the app's own limits,
    else of those of the site."""
    known = declared_limits() | {limit.name: limit for limit in declared}
    return perform(using, _page(using, known, _search(prefix, name, key, own=own), cursor))


def _page(using: str, known: Mapping[str, RateLimit], search: _Search, cursor: str) -> Steps[RatePage]:
    page = yield from scan_page(using, search.pattern, cursor)
    found = [one for redis_key in page.keys if (one := search.parse(redis_key)) is not None]
    return RatePage((yield from _read_uses(using, known, found)), page.cursor)


def read_rate(
    using: str, prefix: str, name: str, key: str, *, declared: Sequence[RateLimit] = ()
) -> RateUse | None:
    """What a key has used of a limit; None if nothing counts. If this process doesn't know the limit, the use
    may not be found among many keys."""
    known = declared_limits() | {limit.name: limit for limit in declared}
    return perform(using, _read_rate(using, prefix, known, name, key))


def is_known(known: Mapping[str, RateLimit], name: str) -> bool:
    """Whether a limit is one of these, or one of the app's own."""
    return name in known or (name.startswith(OWN) and name.removeprefix(OWN) in RATES)


def read_use(
    using: str, prefix: str, known: Mapping[str, RateLimit], name: str, key: str
) -> Steps[RateUse | None]:
    """As `read_rate`, in one round trip: keys are not searched. `known`: limits by their names."""
    periods = {longest_period(known[name])} if name in known else {0}
    own = [rate_key(prefix, key, name.removeprefix(OWN))] if name.startswith(OWN) else []
    keys = [RateKeys(prefix, checked(name, "name"), checked(key, "key"), one) for one in periods]
    found = [_Found(name, key, one) for one in (keys[0].level, *(one.uses for one in keys), *own)]
    uses = yield from _read_uses(using, known, found)
    return uses[0] if uses else None


def _read_rate(
    using: str, prefix: str, known: Mapping[str, RateLimit], name: str, key: str
) -> Steps[RateUse | None]:
    use = yield from read_use(using, prefix, known, name, key)
    if use is not None or name in known or name.startswith(OWN):
        return use
    search = _search(prefix, name, key, own=False)
    page = yield from scan_page(using, search.pattern, owner=RateKeys(prefix, name, key, 0).level)
    uses = yield from _read_uses(using, known, [*filter(None, map(search.parse, page.keys))])
    return uses[0] if uses else None


def reset_rate(using: str, prefix: str, name: str, key: str, *, declared: Sequence[RateLimit] = ()) -> bool:
    """Forget what a key has used of a limit. Returns whether there was anything. Only if this process doesn't
    know the limit, Redis is searched for keys. `declared`: as in `list_rates`."""
    limits = (*declared_limits().values(), *declared)
    periods = {0, *(longest_period(limit) for limit in limits if limit.name == name)}
    keys = [RateKeys(prefix, checked(name, "name"), checked(key, "key"), period) for period in periods]
    own = [rate_key(prefix, key, name.removeprefix(OWN))] if name.startswith(OWN) else []
    if perform(using, _reset([keys[0].level, *(one.uses for one in keys), *own])):
        return True
    return perform(using, _reset([found.redis_key for found in _find(using, prefix, name, key)]))


def _reset(keys: Sequence[str]) -> Steps[bool]:
    return any((yield [Command("DEL", key) for key in keys])) if keys else False


class _Search(NamedTuple):
    """How the keys of rate limits are found."""

    pattern: str
    #: what a key is for; None for a key of something else
    parse: Callable[[str], _Found | None]


def _find(using: str, prefix: str, name: str | None, key: str | None) -> Iterator[_Found]:
    kinds = (False, True) if name is None or name.startswith(OWN) else (False,)
    for search in (_search(prefix, name, key, own=own) for own in kinds):
        yield from filter(None, map(search.parse, scan_keys(using, search.pattern)))


def _search(prefix: str, name: str | None, key: str | None, *, own: bool) -> _Search:
    """The search for keys of the app's own limits, or of those of the site."""
    for what, value in (("name", name), ("key", key)):
        if value is not None:
            checked(value, what)
    if own:
        begin, action = f"{prefix}:{FORMAT}:{{user:", None if name is None else name.removeprefix(OWN)
        return _Search(
            f"{begin}{_pattern(key)}}}:rate:{_pattern(action)}", partial(_parse_own, prefix, begin)
        )
    begin = f"{prefix}:{FORMAT}:{{rate:"
    return _Search(f"{begin}{_pattern(name)}:{_pattern(key)}}}:*", partial(_parse_site, prefix, begin))


def _parse_site(prefix: str, begin: str, redis_key: str) -> _Found | None:
    encoded_name, _, encoded_key = redis_key.removeprefix(begin).partition("}")[0].partition(":")
    found = _Found(unquote(encoded_name), unquote(encoded_key), redis_key)
    part, _, period = redis_key.partition("}:")[2].partition(":")
    if not _are_names(found.name, found.key):
        return None
    keys = RateKeys(prefix, found.name, found.key, int(period) if period.isdecimal() else 0)
    return found if redis_key == (keys.level if part == "level" else keys.uses) else None


def _parse_own(prefix: str, begin: str, redis_key: str) -> _Found | None:
    user, _, used = map(unquote, redis_key.removeprefix(begin).partition("}:rate:"))
    if not _are_names(used, user) or redis_key != rate_key(prefix, user, used):
        return None
    return _Found(OWN + used, user, redis_key)


def _pattern(value: str | None) -> str:
    """The SCAN pattern of a name in a key."""
    return "*" if value is None else literal_pattern(encoded(value))


def _are_names(name: str, key: str) -> bool:
    """Whether these can be names: other programs may write keys, too."""
    try:
        return bool(checked(name, "name") and checked(key, "key"))
    except InvalidArgument:
        return False


def _read_uses(using: str, declared: Mapping[str, RateLimit], page: Sequence[_Found]) -> Steps[list[RateUse]]:
    if not page:
        return []
    known = [_known(using, declared, found) for found in page]
    replies = yield [
        _counting(found) if state is None else state.step for found, state in zip(page, known, strict=True)
    ]
    uses = [
        _counted(found, reply) if state is None else _parse(found, state, reply)
        for found, state, reply in zip(page, known, replies, strict=True)
    ]
    return [use for use in uses if use.used or use.reset_after]


def _known(using: str, declared: Mapping[str, RateLimit], found: _Found) -> _Known | None:
    """None if this process has not declared the limit, or with another algorithm, alias or prefix."""
    action = found.name.removeprefix(OWN)
    if found.name.startswith(OWN) and action in RATES:
        own = UserRate.of(found.key, action, using=using)
        if own.peeking().key == found.redis_key:
            return _Known(own.peeking(), {own.rate: own.rate.limit})
    limit = declared.get(found.name)
    if limit is None or limit._using != using or peek_script(limit, found.key).key != found.redis_key:
        return None
    is_single = len(limit.rates) == 1  # only then it may have a burst
    capacities = {rate: limit.capacity if is_single else rate.limit for rate in limit.rates}
    return _Known(peek_script(limit, found.key), capacities)


def _parse(found: _Found, known: _Known, reply: Sequence[int]) -> RateUse:
    """The reply to a peek."""
    decision = parse_decision(reply, [*known.capacities])
    return RateUse(
        name=found.name,
        key=found.key,
        used=known.capacities[decision.rate] - decision.remaining,
        rate=decision.rate,
        remaining=decision.remaining,
        retry_after=decision.retry_after,
        reset_after=decision.reset_after,
    )


def _counting(found: _Found) -> Command:
    """The step that counts uses without knowing the limit."""
    if found.redis_key.endswith(":level"):
        return Command("HGET", found.redis_key, "requests", reads=True)
    return Command("LLEN", found.redis_key, reads=True)


def _counted(found: _Found, reply: bytes | int | None) -> RateUse:
    # the list has two values for each use
    used = reply // 2 if isinstance(reply, int) else int(reply or 0)
    return RateUse(name=found.name, key=found.key, used=used)
