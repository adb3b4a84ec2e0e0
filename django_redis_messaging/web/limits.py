"""Rate limits of requests: the decorator of views, the answers to what exceeds them, and their headers."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from http import HTTPMethod
from typing import Any, TypeVar, cast
from urllib.parse import quote

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.template.response import TemplateResponse
from django.utils.cache import patch_vary_headers
from django.utils.decorators import method_decorator
from django.utils.timesince import timesince
from django.utils.timezone import now
from django.utils.translation import gettext_lazy as _

from .. import conf
from ..core.encoding import current_prefix
from ..errors import InvalidArgument
from ..services.common.arguments import Duration, integer
from ..services.rates import Decision, Rate, RateLimit, parse_rates
from ..services.rates.rate_limit import OUTAGE_RETRY, Algorithm, OnOutage
from .identity import asynchronous_user
from .problems import TOO_FAST, Answer
from .request_keys import Key, RequestKey

V = TypeVar("V", bound=Callable[..., Any])
R = TypeVar("R")
#: the alias and the prefix of keys
Place = tuple[str, str]

#: seconds after which `on_outage` decides: a page must not wait long for its limit
DEADLINE = 1.0
#: calls in succession without a reply, after which Redis is not asked for a while: one may have waited for a
#: busy process
OUTAGE_FAILURES = 3
#: seconds for which `on_outage` then decides at once: otherwise each request would occupy its process
OUTAGE_PAUSE = 1.0
#: seconds; for longer waits, the page says how long
SHORT_WAIT = 60
UNAVAILABLE = Answer(503, "unavailable", _("This is temporarily unavailable. Try again in a moment."))
#: attribute of a request: the decisions of the limits that have counted it
_COUNTED = "_messaging_rate_limits"
#: attribute of a request: the names of the limits of bound methods, without their numbers
_NAMED = "_messaging_rate_limit_names"
#: characters that a String of structured fields can't contain (RFC 9651)
_NOT_PRINTABLE = re.compile(r"[^\x20-\x7e]+")

#: the limits of all decorators, for checks
declared: weakref.WeakSet[RequestLimit] = weakref.WeakSet()


@dataclasses.dataclass
class Outage:
    """Calls of limits without a reply, since the latest reply."""

    failures: int = 0
    #: until when `on_outage` decides at once; monotonic
    paused_until: float = 0.0


#: the outages, by place and deadline: a limit with a short one must not open those with longer ones
_outages: dict[tuple[Place, Duration], Outage] = {}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RequestLimit:
    """A rate limit of requests: see `rate_limit`."""

    rate: str
    key: RequestKey
    name: str = ""
    #: the name in headers: that of a view need not reveal in which module it is
    label: str = ""
    #: None: all
    methods: frozenset[str] | None = None
    cost: int | Callable[[Any], int] = 1
    algorithm: Algorithm = "gcra"
    burst: int | None = None
    on_outage: OnOutage = "allow"
    deadline: Duration | None = None
    using: str | None = None
    block: bool = True
    #: the same limit as the decorator was given it, without the name of a view
    source: RequestLimit | None = None

    @functools.cached_property
    def rates(self) -> tuple[Rate, ...]:
        return parse_rates(self.rate)

    def check(self) -> None:
        """Raise the error of arguments that don't fit together."""
        self.new_service()

    def new_service(self) -> RateLimit:
        """A rate limit in Redis with the alias and the prefix that are in use now."""
        return _new_service(self.place, *self._arguments)

    @property
    def place(self) -> Place:
        """Where it counts now: the prefix can change with the tenant."""
        return self.using or conf.alias(), current_prefix()

    def service(self, place: Place) -> RateLimit:
        """The rate limit in Redis, always the same one: it logs an outage once."""
        return _service(place, *self._arguments)

    @property
    def _arguments(self) -> tuple[Any, ...]:
        name = self.name or "view"
        return name, self.rate, self.algorithm, self.burst, self.on_outage, self._deadline

    @property
    def _deadline(self) -> Duration:
        return DEADLINE if self.deadline is None else self.deadline

    def take(self, request: Any) -> Decision | None:
        """Count a request, and set `request.rate_limit`; None if it is not counted."""
        if not self._concerns(request):
            return self._note(request, None)
        user = getattr(request, "user", None) if self.key.uses_user else None
        key = self.key.of(request, user)
        cost = self._cost(request)
        if key is None or cost == 0:
            return self._note(request, None)
        place = self.place
        service = self.service(place)
        decision = self._known_before(place, service, cost)
        if decision is None:  # a Decision is false if it denies
            decision = self._noted(place, service.take(key, cost))
        return self._note(request, decision)

    async def atake(self, request: Any) -> Decision | None:
        """An async version of `take`."""
        if not self._concerns(request):
            return self._note(request, None)
        user = await asynchronous_user(request) if self.key.uses_user else None
        key = await self.key.aof(request, user)
        cost = self._cost(request)
        if key is None or cost == 0:
            return self._note(request, None)
        place = self.place
        service = self.service(place)
        decision = self._known_before(place, service, cost)
        if decision is None:
            decision = self._noted(place, await service.atake(key, cost))
        return self._note(request, decision)

    def _concerns(self, request: Any) -> bool:
        return self.methods is None or request.method in self.methods

    def _cost(self, request: Any) -> int:
        if not callable(self.cost):
            return self.cost
        cost = self.cost(request)
        if not isinstance(cost, int):
            raise TypeError(f"The cost function {self.cost!r} must return an int, not {type(cost).__name__}.")
        if cost < 0:
            raise InvalidArgument(f"The cost function {self.cost!r} returned {cost}: the minimum is 0.")
        return cost

    def _known_before(self, place: Place, service: RateLimit, cost: int) -> Decision | None:
        """What is decided without asking Redis: it was not available a moment ago, or a request costs more
        than is ever available, which clients may bring about."""
        outage = _outages.get((place, self._deadline))
        if self.on_outage != "raise" and outage and outage.paused_until > time.monotonic():
            allowed = self.on_outage == "allow"
            return self._decision(allowed=allowed, wait=0.0 if allowed else OUTAGE_RETRY, known=False)
        if callable(self.cost) and cost > service.capacity:
            return self._decision(allowed=False, wait=self.rates[-1].period)
        return None

    def _noted(self, place: Place, decision: Decision) -> Decision:
        """Let `on_outage` decide for a while if Redis has not replied several times in succession."""
        at = place, self._deadline
        if decision.known:
            _outages.pop(at, None)
            return decision
        outage = _outages.setdefault(at, Outage())
        outage.failures += 1
        if outage.failures >= OUTAGE_FAILURES:
            outage.paused_until = time.monotonic() + OUTAGE_PAUSE
        return decision

    def _note(self, request: Any, decision: Decision | None) -> Decision | None:
        """Set `request.rate_limit`: of the limits that have counted the request, the tightest one."""
        counted = getattr(request, _COUNTED, ())
        if decision is not None:
            counted = (*counted, decision)
            setattr(request, _COUNTED, counted)
        unused = self._decision(allowed=True, remaining=min(rate.limit for rate in self.rates))
        request.rate_limit = min(counted, key=_tightness, default=unused)
        return decision

    def _decision(
        self, *, allowed: bool, remaining: int = 0, wait: float = 0.0, known: bool = True
    ) -> Decision:
        return Decision(
            allowed=allowed, remaining=remaining, retry_after=wait, reset_after=wait, rate=self.rates[0],
            known=known,
        )  # fmt: skip

    def headers(self, decision: Decision) -> dict[str, str]:
        """The fields RateLimit-Policy and RateLimit, by draft-ietf-httpapi-ratelimit-headers-10."""
        policies = (f"{self._policy(rate)};q={rate.limit}{_window(rate)}" for rate in self.rates)
        fields = {"RateLimit-Policy": ", ".join(policies)}
        if decision.known:
            rest = f";r={decision.remaining};t={self._seconds_to_more(decision)}"
            fields["RateLimit"] = self._policy(decision.rate) + rest
        return fields

    def _policy(self, rate: Rate) -> str:
        """The name of a policy, as a String of structured fields."""
        name = self.label or self.name
        if len(self.rates) > 1:
            name += f"/{_seconds(rate.period)}s"
        text = _NOT_PRINTABLE.sub(lambda found: quote(found[0]), name)
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    def _seconds_to_more(self, decision: Decision) -> int:
        """Seconds until more uses are available than now."""
        if not decision.allowed:
            return math.ceil(decision.retry_after)
        if self.algorithm == "gcra":  # one use comes back in this time
            return math.ceil(min(decision.reset_after, decision.rate.period / decision.rate.limit))
        return math.ceil(decision.reset_after)


def _new_service(
    place: Place,
    name: str,
    rate: str,
    algorithm: Algorithm,
    burst: int | None,
    on_outage: OnOutage,
    deadline: Duration,
) -> RateLimit:
    """A rate limit with the prefix that is in use now: that of `place`."""
    return RateLimit(
        name, rate, algorithm=algorithm, burst=burst, on_outage=on_outage, deadline=deadline, using=place[0]
    )


_service = functools.lru_cache(maxsize=1024)(_new_service)


def _tightness(decision: Decision) -> tuple[bool, float, int]:
    return decision.allowed, -decision.retry_after, decision.remaining


def _seconds(period: float) -> str:
    """A number without exponent.

    >>> _seconds(2_592_000.0), _seconds(0.5)
    ('2592000', '0.5')
    """
    return str(int(period)) if period.is_integer() else str(period)


def _window(rate: Rate) -> str:
    """The parameter for the period, which must be whole seconds."""
    return f";w={_seconds(rate.period)}" if rate.period.is_integer() else ""


def rate_limit(
    rate: str | Sequence[str],
    key: Key = "user_or_ip",
    *,
    name: str | None = None,
    methods: Iterable[str] | None = None,
    cost: int | Callable[[HttpRequest], int] = 1,
    algorithm: Algorithm = "gcra",
    burst: int | None = None,
    on_outage: OnOutage = "allow",
    deadline: Duration | None = None,
    using: str | None = None,
    block: bool = True,
) -> Callable[[V], V]:
    """Decorate a view, sync or async, a function or a class: answer 429 to requests above a rate.

        @rate_limit("5/m", key="post:username", methods={"POST"}, on_outage="deny")
        def login(request): ...

    - `rate`, `algorithm` and `burst` are those of `RateLimit`.
    - `key` is what requests are counted by: "user_or_ip"; "ip"; "user", which counts only users who are
      signed in; "anonymous", which counts all others by address; "header:X-Api-Key", "post:username",
      "get:q": a value that the client sends, or its address if it sends none; a function of the request that
      returns a str, or None for a request that is not counted; or several in a list: each combination counts
      by itself. IPv6 addresses count by their first 64 bits.
    - `name`: limits of the same name count together. Default: the module and the name of the view; with
      `method_decorator`, those of the class that answers, and the name of the method.
    - `methods`: only requests with these methods are counted; "GET" includes HEAD.
    - `cost`: how often a request counts, or a function of the request that returns it. 0: not at all; more
      than the rate: it is refused.
    - `on_outage`: what happens if Redis is not available for `deadline` (default: 1 s): "allow", the
      default, since a page is worth more than its limit; "deny" answers 503; "raise".
    - `block=False`: the view is called in any case, and decides by `request.rate_limit.allowed`.

    `request.rate_limit` is the Decision; with several limits, that of the tightest one. Responses have the
    fields RateLimit-Policy and RateLimit, those with status 429 also Retry-After.

    Raises TypeError or InvalidArgument for arguments that are not allowed.
    """
    limit = request_limit(
        rate, key, name=name or "", methods=methods, cost=cost, algorithm=algorithm, burst=burst,
        on_outage=on_outage, deadline=deadline, using=using, block=block,
    )  # fmt: skip
    declared.add(limit)

    def decorate(view: V) -> V:
        if isinstance(view, type):
            # Each instance dispatches its requests.
            return cast(V, _decorate_class(view, limit))
        named = _named_after(view, view, limit)
        if not _is_of_method_decorator(view):
            declared.add(named)
        guarded = _guarded(view, named)
        guarded.rate_limits = (*getattr(view, "rate_limits", ()), named)
        return cast(V, guarded)

    return decorate


def request_limit(
    rate: str | Sequence[str],
    key: Key = "user_or_ip",
    *,
    methods: Iterable[str] | None = None,
    **options: Any,
) -> RequestLimit:
    """A limit with arguments of `rate_limit`, checked as far as that is possible without the settings."""
    capacity = options.get("burst") or min(one.limit for one in parse_rates(rate))
    if not callable(cost := options.get("cost", 1)):
        integer(cost, "cost", minimum=0, maximum=capacity)
    return RequestLimit(
        rate=rate if isinstance(rate, str) else ", ".join(rate),
        key=RequestKey(key),
        methods=None if methods is None else _checked_methods(methods),
        **options,
    )


def _decorate_class(view: Any, limit: RequestLimit) -> Any:
    dispatch = view.dispatch
    named = _named_after(view, dispatch, limit)
    declared.add(named)

    @functools.wraps(dispatch)
    def guarded(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        # not before a request: the methods of a class can be decorated later
        is_async = getattr(self, "view_is_async", False) or iscoroutinefunction(dispatch)
        answer = arespond if is_async else respond
        return answer([named], functools.partial(dispatch, self), request, *args, **kwargs)

    setattr(guarded, "rate_limits", (*getattr(dispatch, "rate_limits", ()), named))  # noqa: B010
    view.dispatch = guarded
    return view


def _guarded(view: Any, limit: RequestLimit) -> Any:
    instance = _bound_to(view)
    numbered = _numbered if instance is not None else lambda limit, request: limit
    # dispatch() of an async class returns coroutines, too
    if iscoroutinefunction(view) or getattr(instance, "view_is_async", False):

        @functools.wraps(view)
        async def aguarded(request: Any, *args: Any, **kwargs: Any) -> Any:
            return await arespond([numbered(limit, request)], view, request, *args, **kwargs)

        return aguarded

    @functools.wraps(view)
    def guarded(request: Any, *args: Any, **kwargs: Any) -> Any:
        return respond([numbered(limit, request)], view, request, *args, **kwargs)

    return guarded


def _bound_to(view: Any) -> Any:
    """The instance of a view class whose method was decorated: for each request, `method_decorator` makes a
    function from the bound method, and decorates it."""
    while not isinstance(view, functools.partial):
        if not hasattr(view, "__wrapped__"):
            return None
        view = view.__wrapped__  # by another decorator
    return getattr(view.func, "__self__", None) if hasattr(view, "__wrapped__") else None


def _numbered(limit: RequestLimit, request: Any) -> RequestLimit:
    """A limit of a bound method, with a number if it is a further one: the decorators of superclasses, and of
    an inner `method_decorator`, can't be seen before the request."""
    if limit.source is None:
        return limit
    names: list[str] = request.__dict__.setdefault(_NAMED, [])
    names.append(limit.name)
    number = names.count(limit.name)
    if number == 1:
        return limit
    return dataclasses.replace(limit, name=f"{limit.name}-{number}", label=f"{limit.label}-{number}")


def _is_of_method_decorator(view: Any) -> bool:
    """Whether the view is made for a single request, or is the one that method_decorator tries first."""
    return _bound_to(view) is not None or view.__module__ == method_decorator.__module__


def _checked_methods(methods: Iterable[str]) -> frozenset[str]:
    if isinstance(methods, str):
        raise TypeError("methods must be a list, not a str: put it in a list.")
    found = frozenset(methods)
    unknown = found - {str(method) for method in HTTPMethod}
    if unknown or not found:
        raise InvalidArgument(f"methods must be names of HTTP methods such as 'POST', not {sorted(unknown)}.")
    # Django's views answer HEAD like GET.
    return found | {"HEAD"} if "GET" in found else found


def _named_after(view: Any, decorated: Any, limit: RequestLimit) -> RequestLimit:
    """The limit with the name of the view, unless it has a name; that of a further limit ends in a number."""
    if limit.name:
        return limit
    # the view class of as_view(), whose own name is that of a function of Django
    view = getattr(view, "view_class", view)
    label = getattr(view, "__qualname__", type(view).__qualname__)
    module = view.__module__
    number = 1 + sum(one.source is not None for one in getattr(decorated, "rate_limits", ()))
    if (instance := _bound_to(view)) is not None:  # the method may be inherited, such as View.dispatch
        module, label = type(instance).__module__, f"{type(instance).__qualname__}.{view.__name__}"
        number = 1  # see _numbered
    if isinstance(view, type):
        label = view.__name__ if label.rpartition(".")[2] != view.__name__ else label
    label += f"-{number}" if number > 1 else ""
    return dataclasses.replace(limit, name=f"{module}.{label}", label=label, source=limit)


def respond(
    limits: Iterable[RequestLimit], view: Callable[..., Any], request: Any, *args: Any, **kwargs: Any
) -> Any:
    """Call a view, unless a limit refuses the request: then those behind it don't count it."""
    taken = Taken(request)
    for limit in limits:
        if not taken.add(limit, limit.take(request)):
            return taken.refusal()
    return taken.with_headers(view(request, *args, **kwargs))


async def arespond(
    limits: Iterable[RequestLimit], view: Callable[..., Any], request: Any, *args: Any, **kwargs: Any
) -> Any:
    """An async version of `respond`."""
    taken = Taken(request)
    for limit in limits:
        if not taken.add(limit, await limit.atake(request)):
            return taken.refusal()
    return taken.with_headers(await view(request, *args, **kwargs))


class Taken:
    """The decisions about a request."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self._decisions: list[tuple[RequestLimit, Decision]] = []

    def add(self, limit: RequestLimit, decision: Decision | None) -> bool:
        """Add a decision; returns whether the request may go on."""
        if decision is None:
            return True
        self._decisions.append((limit, decision))
        return decision.allowed or not limit.block

    def with_headers(self, response: R) -> R:
        """The response, with the fields of all limits that have counted the request: a list in one field."""
        if isinstance(response, HttpResponseBase):  # Django raises an error for anything else
            for limit, decision in self._decisions:
                add_headers(response.headers, limit, decision)
        return response

    def refusal(self) -> HttpResponse:
        """The answer to a request above the limit that was added last: JSON, or a page for browsers."""
        _, decision = self._decisions[-1]
        wait = max(math.ceil(decision.retry_after), 1)
        answer = dataclasses.replace(TOO_FAST if decision.known else UNAVAILABLE, retry_after=wait)
        if self._request.get_preferred_type(["application/json", "text/html"]) == "text/html":
            response = _page(self._request, answer)
        else:
            error = {"code": answer.code, "message": str(answer.message)}
            response = JsonResponse({"error": error}, status=answer.status)
        response.headers["Retry-After"] = str(wait)
        response.headers["Cache-Control"] = "no-store"
        patch_vary_headers(response, ["Accept"])
        return self.with_headers(response)


def add_headers(headers: Any, limit: RequestLimit, decision: Decision) -> None:
    """Add the fields of a limit to those that are there: they are lists."""
    for field, value in limit.headers(decision).items():
        before = headers.get(field)
        headers[field] = f"{before}, {value}" if before else value


def _page(request: Any, answer: Answer) -> HttpResponse:
    """The page that says so: the site's own 429.html or 503.html, or that of the app."""
    wait, moment = answer.retry_after or 0, now()
    context = {
        "problem": answer,
        "retry_after": wait,
        "wait": timesince(moment, moment + timedelta(seconds=wait)) if wait > SHORT_WAIT else "",
    }
    names = [f"{answer.status}.html", "django_redis_messaging/429.html"]
    return TemplateResponse(request, names, context, status=answer.status)
