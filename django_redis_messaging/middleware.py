"""A deadline for the operations of each request; rate limits by path, before any view, and the checks of all
rate limits of requests.

MIDDLEWARE = [
    "django_redis_messaging.middleware.DeadlineMiddleware", …
    "django_redis_messaging.middleware.RateLimitMiddleware",
]
REDIS_MESSAGING = {
    "WEB_DEADLINE": 2.0,
    "RATE_LIMITS": [{"rate": "100/m", "key": "ip", "path": "/api/", "methods": ["POST"]}],
}
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.http import HttpRequest
from django.template.response import SimpleTemplateResponse
from django.urls import get_resolver

from . import conf
from .core.outcome import deadline
from .core.testruns import is_kind_of
from .errors import ConfigurationError, MessagingError
from .web.limit_rules import Rule, read_rules
from .web.limits import RequestLimit, arespond, declared, respond

#: the dotted paths in MIDDLEWARE
OURS = "django_redis_messaging.middleware.RateLimitMiddleware"
AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"
#: settings of Django that only sites behind a proxy have
PROXY_SETTINGS = ("SECURE_PROXY_SSL_HEADER", "USE_X_FORWARDED_HOST", "USE_X_FORWARDED_PORT")


class _Middleware:
    """Calls `_call`, or `_acall` if what is behind it is async. Django's MiddlewareMixin would run `_call` in
    a thread instead."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self._get_response = get_response
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        return self._acall(request) if self._is_async else self._call(request)

    def _call(self, request: HttpRequest) -> Any: ...

    async def _acall(self, request: HttpRequest) -> Any: ...


class DeadlineMiddleware(_Middleware):
    """Gives all operations of a request WEB_DEADLINE seconds together, from here until its response begins:
    the content of a streaming response has no limit. Sync or async like what is behind it.

    See `deadline`, which can shorten it in a view. Put it first.
    """

    def _call(self, request: HttpRequest) -> Any:
        with deadline(conf.current().WEB_DEADLINE):
            return self._get_response(request)

    async def _acall(self, request: HttpRequest) -> Any:
        with deadline(conf.current().WEB_DEADLINE):
            return await self._get_response(request)


class RateLimitMiddleware(_Middleware):
    """Answers 429 to requests above the limits of RATE_LIMITS, sync or async like what is behind it.

    All rules whose path matches count a request, in their order, until one refuses it. Put it behind
    AuthenticationMiddleware if a rule counts by user, and behind LocaleMiddleware for translated pages.
    """

    _settings: conf.Settings | None = None
    _rules: Sequence[Rule] = ()

    def _call(self, request: HttpRequest) -> Any:
        return _rendered(respond(self._limits(request), self._get_response, request))

    async def _acall(self, request: HttpRequest) -> Any:
        response = await arespond(self._limits(request), self._get_response, request)
        # As Django renders the template responses of async views: a context processor may use the database.
        return await sync_to_async(_rendered)(response) if _is_unrendered(response) else response

    def _limits(self, request: HttpRequest) -> Iterator[RequestLimit]:
        current = conf.current()
        if self._settings is not current:
            self._rules, self._settings = read_rules(), current
        return (rule.limit for rule in self._rules if rule.concerns(request.path_info))


def _is_unrendered(response: Any) -> bool:
    """Whether it is a page about a limit; Django has rendered those of views."""
    return isinstance(response, SimpleTemplateResponse) and not response.is_rendered


def _rendered(response: Any) -> Any:
    return response.render() if _is_unrendered(response) else response


def check_rate_limits(**_: object) -> list[CheckMessage]:
    """Check RATE_LIMITS and the arguments of `rate_limit`, and that the middleware is in its place."""
    if not isinstance(getattr(settings, conf.NAME, {}), dict):
        return []  # another check reports it
    try:
        rules = read_rules()
        limits = [*declared, *(rule.limit for rule in rules)]
        for limit in limits:
            limit.check()
    except (MessagingError, TypeError) as error:
        hint = "Correct it: see docs/rate-limits.md."
        return [Error(f"A rate limit is invalid: {error}", hint=hint, id="messaging.E012")]
    return [*_check_names(limits), *(_check_place(rules) if rules else [])]


def _check_names(limits: Sequence[RequestLimit]) -> Iterator[CheckMessage]:
    """Limits of one name count together if their periods and algorithms are the same, even in two views."""
    counted: dict[str, set[object]] = {}
    for limit in limits:
        if limit.name:
            counted.setdefault(limit.name, set()).add((limit.rates, limit.algorithm, limit.burst))
    for name in sorted(name for name, kinds in counted.items() if len(kinds) > 1):
        yield Warning(
            f"Rate limits with different rates have the same name: {name}. They count "
            "together if their periods and algorithms are the same, else each by itself.",
            hint="Give each of them its own name=.",
            id="messaging.W027",
        )


def _check_place(rules: list[Rule]) -> Iterator[CheckMessage]:
    kinds = [
        next((kind for kind in (OURS, AUTHENTICATION) if is_kind_of(path, kind)), "")
        for path in settings.MIDDLEWARE or []
    ]
    if OURS not in kinds:
        yield Warning(
            "RATE_LIMITS has no effect, because MIDDLEWARE lacks RateLimitMiddleware.",
            hint=f'Add to MIDDLEWARE:\n    "{OURS}",',
            id="messaging.W024",
        )
    elif any(rule.limit.key.uses_user for rule in rules) and AUTHENTICATION not in kinds[: kinds.index(OURS)]:
        yield Warning(
            "RATE_LIMITS counts by user, but RateLimitMiddleware is before AuthenticationMiddleware: no "
            "request has a user yet.",
            hint="Move RateLimitMiddleware behind it.",
            id="messaging.W025",
        )


def check_proxies(**_: object) -> list[CheckMessage]:
    """Check that limits by address see the clients behind a proxy, and not the proxy."""
    shown = [name for name in PROXY_SETTINGS if getattr(settings, name, None)]
    try:
        if not shown or conf.current().TRUSTED_PROXIES:
            return []
        rules = read_rules()
    except ConfigurationError:
        return []  # another check reports it
    if hasattr(settings, "ROOT_URLCONF"):
        get_resolver().url_patterns  # noqa: B018 (imports the views, and so declares their limits)
    if not any(limit.key.uses_address for limit in (*declared, *(rule.limit for rule in rules))):
        return []
    return [
        Warning(
            f"{shown[0]} says that the site is behind a proxy, but TRUSTED_PROXIES is empty: rate limits by "
            "address count all clients as one, the proxy.",
            hint="Set it to the addresses of your proxies, such as "
            f'{conf.NAME} = {{"TRUSTED_PROXIES": ["10.0.0.0/8"]}}. If your server sets REMOTE_ADDR to the '
            "address of the client, as uvicorn --proxy-headers does, silence this check.",
            id="messaging.W026",
        )
    ]
