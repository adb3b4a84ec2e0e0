"""Content-Security-Policies for real browsers: `settings.TEST_POLICY` is sent with every response."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import sync_and_async_middleware

_OTHERS = (
    "default-src 'none'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'; "
)
#: only files of the site itself, and nothing inline
SELF = f"{_OTHERS} script-src 'self'"
#: only scripts with the nonce and those that they load, and HTML from scripts only by our policy
STRICT = (
    f"{_OTHERS} script-src 'nonce-NONCE' 'strict-dynamic'; require-trusted-types-for 'script'; "
    "trusted-types django-redis-messaging"
)


@sync_and_async_middleware
def send_policy(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """Middleware that sends the policy of the running test; a live server loads its middleware only once."""

    def answer(request: HttpRequest) -> HttpResponse:
        value = _begin(request)
        return _end(get_response(request), value)

    async def aanswer(request: HttpRequest) -> HttpResponse:
        value = _begin(request)
        return _end(await get_response(request), value)

    return aanswer if iscoroutinefunction(get_response) else answer


def _begin(request: HttpRequest) -> str:
    value = secrets.token_urlsafe()
    if "NONCE" in settings.TEST_POLICY:
        request.csp_nonce = value  # type: ignore[attr-defined]
    return value


def _end(response: HttpResponse, value: str) -> HttpResponse:
    if settings.TEST_POLICY:
        response["Content-Security-Policy"] = settings.TEST_POLICY.replace("NONCE", value)
    return response


def nonce(request: HttpRequest) -> dict[str, Any]:
    """Context processor: the nonce under the name that Django's templates use."""
    value = getattr(request, "csp_nonce", None)
    return {} if value is None else {"csp_nonce": value}
