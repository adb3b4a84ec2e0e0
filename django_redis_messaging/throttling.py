"""Rate limits of Django REST framework's views, which count in Redis.

REST_FRAMEWORK = {
    "DEFAULT_THROTTLE_CLASSES": ["django_redis_messaging.throttling.RateLimitThrottle"],
    "DEFAULT_THROTTLE_RATES": {"uploads": "20/day"},     # for views with throttle_scope = "uploads"
}
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from rest_framework.exceptions import APIException
from rest_framework.settings import api_settings
from rest_framework.throttling import BaseThrottle

from .services.common.arguments import Duration
from .services.rates import Decision
from .services.rates.rate_limit import Algorithm, OnOutage
from .web.limits import UNAVAILABLE, RequestLimit, add_headers, request_limit
from .web.request_keys import Key


class LimitUnavailable(APIException):  # type: ignore[misc]
    """Redis is not available, and `on_outage` is "deny"."""

    status_code = UNAVAILABLE.status
    default_detail = UNAVAILABLE.message
    default_code = UNAVAILABLE.code


class RateLimitThrottle(BaseThrottle):  # type: ignore[misc]
    """A throttle with a rate limit in Redis. Subclasses set the attributes.

        class Uploads(RateLimitThrottle):
            rate = "5/m, 20/day"
            scope = "uploads"

    The rate is `rate`, else that of `scope` in DEFAULT_THROTTLE_RATES; without either, that of the view's
    `throttle_scope`. None: not limited. Throttles of the same `name` (default: the scope, else the class)
    count together. The other attributes are the arguments of `rate_limit`; `key` and `cost` can be methods.

    Responses have the fields RateLimit-Policy and RateLimit.
    """

    rate: str | Sequence[str] | None = None
    scope: str | None = None
    name: str | None = None
    key: Key = "user_or_ip"
    methods: Sequence[str] | None = None
    cost: int | Callable[[Any], int] = 1
    algorithm: Algorithm = "gcra"
    burst: int | None = None
    on_outage: OnOutage = "allow"
    deadline: Duration | None = None
    using: str | None = None

    _decision: Decision | None = None

    def allow_request(self, request: Any, view: Any) -> bool:
        """Count the request, and return whether the view may answer it."""
        limit = self._limit(view)
        self._decision = None if limit is None else limit.take(request)
        if limit is None or self._decision is None:
            return True
        if hasattr(view, "headers"):  # those of the response
            add_headers(view.headers, limit, self._decision)
        if not self._decision.allowed and not self._decision.known:
            raise LimitUnavailable()
        return self._decision.allowed

    def wait(self) -> Any:
        """Seconds until the request can be allowed."""
        return None if self._decision is None else self._decision.retry_after

    def _limit(self, view: Any) -> RequestLimit | None:
        scope = self.scope or (None if self.rate else getattr(view, "throttle_scope", None))
        rate = self.rate or (self._rate_of(scope) if scope else None)
        if rate is None:
            return None
        kind = type(self)
        return request_limit(
            rate,
            self.key,
            name=self.name or scope or f"{kind.__module__}.{kind.__qualname__}",
            label=self.name or scope or kind.__qualname__,
            methods=self.methods, cost=self.cost, algorithm=self.algorithm, burst=self.burst,
            on_outage=self.on_outage, deadline=self.deadline, using=self.using,
        )  # fmt: skip

    @staticmethod
    def _rate_of(scope: str) -> str | None:
        try:
            rates: Any = api_settings.DEFAULT_THROTTLE_RATES
            rate: str | None = rates[scope]
        except KeyError:
            raise ImproperlyConfigured(f"DEFAULT_THROTTLE_RATES has no rate for {scope!r}.") from None
        return rate
