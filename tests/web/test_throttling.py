"""RateLimitThrottle, with views of Django REST framework."""

from __future__ import annotations

import time
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from pytest_django import Settings
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory, force_authenticate
from rest_framework.views import APIView

from django_redis_messaging.throttling import RateLimitThrottle

from .conftest import Person
from .test_rate_limits import fields

pytestmark = pytest.mark.versions

FACTORY = APIRequestFactory()


def view(*throttles: type[RateLimitThrottle], **attributes: Any) -> Any:
    def answer(self: APIView, request: Any) -> Response:
        return Response("ok")

    options = {"throttle_classes": throttles, "get": answer, "post": answer, **attributes}
    return type("Answers", (APIView,), options).as_view()


def throttle(**attributes: Any) -> type[RateLimitThrottle]:
    return type("Throttle", (RateLimitThrottle,), {"name": f"t-{time.monotonic_ns()}", **attributes})


def ask(shown: Any, data: Any = None, user: Any = None) -> Any:
    request = FACTORY.get("/") if data is None else FACTORY.post("/", data, format="json")
    if user is not None:
        force_authenticate(request, user)
    return shown(request).render()


def statuses(shown: Any, times: int, *args: Any) -> list[int]:
    return [ask(shown, *args).status_code for _ in range(times)]


def test_rate() -> None:
    shown = view(throttle(rate="2/m", name="page"))
    answers = [ask(shown) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[2]["Retry-After"] == "30"
    assert [fields(answer) for answer in answers] == [
        ({"page": {"q": 2, "w": 60}}, {"page": {"r": left, "t": 30}}) for left in (1, 0, 0)
    ]


def test_scopes(settings: Settings) -> None:
    """Views of one scope count together, by the rate in the settings."""
    settings.REST_FRAMEWORK = {"DEFAULT_THROTTLE_RATES": {"uploads": "2/day", "free": None}}
    first, second = (
        view(throttle(scope="uploads", name=None)),
        view(RateLimitThrottle, throttle_scope="uploads"),
    )
    assert [ask(one).status_code for one in (first, second, first, second)] == [200, 200, 429, 429]
    assert statuses(view(RateLimitThrottle), 5) == [200] * 5
    assert statuses(view(RateLimitThrottle, throttle_scope="free"), 5) == [200] * 5
    with pytest.raises(ImproperlyConfigured, match="'none'"):
        ask(view(RateLimitThrottle, throttle_scope="none"))


def test_users_of_the_framework_are_counted(person: Person) -> None:
    """Also those whom no session knows."""
    shown = view(throttle(rate="1/h"))
    for name in ("ann", "bob"):
        assert statuses(shown, 2, None, person(name)) == [200, 429]


def test_fields_of_json_are_keys() -> None:
    shown = view(throttle(rate="1/h", key="post:username"))
    assert statuses(shown, 2, {"username": "ann"}) == [200, 429]
    assert statuses(shown, 2, {"username": 5}) == [200, 429]
    assert statuses(shown, 2, ["username"]) == [200, 429]


def test_methods_as_key_and_cost() -> None:
    shown = view(throttle(rate="4/h", key=lambda self, request: "all", cost=lambda self, request: 3))
    assert statuses(shown, 2) == [200, 429]


def test_several() -> None:
    shown = view(throttle(rate="9/h", name="a"), throttle(rate="1/h", name="b"))
    assert statuses(shown, 1) == [200]
    refused = ask(shown)
    assert (refused.status_code, refused["Retry-After"]) == (429, "3600")
    assert set(fields(refused)[1]) == {"a", "b"}


def test_outage(away: None) -> None:
    assert ask(view(throttle(rate="1/h"))).status_code == 200
    assert ask(view(throttle(rate="1/h", on_outage="deny"))).status_code == 503
