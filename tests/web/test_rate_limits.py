"""Rate limits of views: the decorator, what requests are counted by, the middleware, and the answers."""

from __future__ import annotations

import asyncio
import functools
import json
import re
import threading
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import RequestDataTooBig
from django.core.files.base import ContentFile
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, AsyncRequestFactory, Client, RequestFactory, override_settings
from django.urls import path
from django.utils import translation
from django.utils.decorators import method_decorator
from django.utils.deprecation import MiddlewareMixin
from django.utils.functional import SimpleLazyObject
from django.views import View
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pytest_django import Settings

from django_redis_messaging import Decision, InvalidArgument, RateLimit, Unavailable, rate_limit
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.web import request_keys
from django_redis_messaging.web.request_keys import address_key

from ..support.faults import Connect, unavailable
from ..support.server import all_keys, change, until
from .conftest import Person

pytestmark = pytest.mark.versions

FACTORY, ASYNC_FACTORY = RequestFactory(), AsyncRequestFactory()
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
#: an Item of structured fields (RFC 9651): a String with parameters that are Integers
ITEM = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"((?:;[a-z]+=\d{1,15})*)')


def items(value: str) -> dict[str, dict[str, int]]:
    """The List of a field: name → parameters."""
    assert re.fullmatch(rf"{ITEM.pattern}(, {ITEM.pattern})*", value), value
    found = {}
    for name, parameters in ITEM.findall(value):
        pairs = (one.split("=") for one in parameters.split(";")[1:])
        found[name] = {key: int(number) for key, number in pairs}
    return found


def fields(response: Any) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, int]]]:
    """RateLimit-Policy and RateLimit."""
    return items(response["RateLimit-Policy"]), items(response["RateLimit"])


def ok(request: HttpRequest, *args: Any) -> HttpResponse:
    return HttpResponse("ok")


async def async_ok(request: HttpRequest, *args: Any) -> HttpResponse:
    return HttpResponse("ok")


def ask(view: Callable[..., Any], *, user: Any = None, method: str = "GET", **options: Any) -> Any:
    request = FACTORY.generic(method, "/", **options)
    request.user = user or AnonymousUser()
    return view(request)


def statuses(view: Callable[..., Any], times: int, **options: Any) -> list[int]:
    return [ask(view, **options).status_code for _ in range(times)]


class TestDecorator:
    def test_requests_above_the_rate_get_429(self) -> None:
        view = rate_limit("2/m", name="search")(ok)
        answers = [ask(view) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert [fields(answer) for answer in answers] == [
            ({"search": {"q": 2, "w": 60}}, {"search": {"r": left, "t": 30}}) for left in (1, 0, 0)
        ]
        assert [answer.get("Retry-After") for answer in answers] == [None, None, "30"]
        assert answers[2]["Cache-Control"] == "no-store"

    def test_sync_and_async_views_of_one_name_count_together(self) -> None:
        limit = rate_limit("3/h", name="both")
        view, async_view = limit(ok), async_to_sync(limit(async_ok))
        request = ASYNC_FACTORY.get("/")
        found = [ask(view), async_view(request), ask(view), async_view(request), ask(view)]
        assert [answer.status_code for answer in found] == [200, 200, 200, 429, 429]

    @pytest.mark.parametrize("is_async", [False, True])
    @pytest.mark.parametrize("place", ["class", "dispatch", "method", "as_view"])
    def test_class_based_views(self, place: str, is_async: bool) -> None:
        limit = rate_limit("1/h", name="shown-in-fields")

        class Page(View):
            async def get(self, request: HttpRequest) -> HttpResponse:
                return HttpResponse(type(self).__name__)

        if not is_async:
            Page.get = lambda self, request: HttpResponse("Page")  # type: ignore[method-assign, assignment, return-value]
        if place == "class":
            limit(Page)
        elif place != "as_view":
            name = {"dispatch": "dispatch", "method": "get"}[place]
            method_decorator(limit, name=name)(Page)
        view: Any = Page.as_view()
        view = limit(view) if place == "as_view" else view
        view = async_to_sync(view) if is_async else view
        answers = [view(FACTORY.get("/")) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 429]
        assert answers[0].content == b"Page"
        assert fields(answers[1])[1] == {"shown-in-fields": {"r": 0, "t": 3600}}

    def test_names_of_views(self) -> None:
        """Each view counts by itself, and so does each of its limits."""

        @rate_limit("1/h")
        class Page(View):
            def get(self, request: HttpRequest) -> HttpResponse:
                return HttpResponse()

        limit = rate_limit("3/h")
        views = [limit(limit(limit(ok))), limit(async_ok), Page.as_view(), limit(functools.partial(ok))]
        ask(views[0])
        async_to_sync(views[1])(FACTORY.get("/"))
        ask(views[2])
        ask(views[3])
        names = {re.search(r"rate:(.+):ip", key)[1] for key in all_keys()}  # type: ignore[index]
        prefix = f"{__name__}."
        page = f"{prefix}TestDecorator.test_names_of_views.<locals>.Page"
        assert names == {
            *(f"{prefix}{name}" for name in ("ok", "ok-2", "ok-3", "async_ok")), page, "functools.partial"
        }  # fmt: skip
        assert set(fields(ask(views[0]))[0]) == {"ok", "ok-2", "ok-3"}

    @pytest.mark.parametrize("is_async", [False, True])
    def test_each_class_counts_its_inherited_methods(self, is_async: bool) -> None:
        """With method_decorator, each class is a view, and each of its decorators a limit."""
        decorate = method_decorator([rate_limit("2/h"), rate_limit("1/h")], name="dispatch")
        decorate_again = method_decorator(rate_limit("3/h"), name="dispatch")

        async def async_get(self: View, request: HttpRequest) -> HttpResponse:
            return HttpResponse()

        for name in ("First", "Second"):
            method: Any = async_get if is_async else lambda self, request: HttpResponse()
            view: Any = decorate_again(decorate(type(name, (View,), {"get": method}))).as_view()
            view = async_to_sync(view) if is_async else view
            found = [view(FACTORY.get("/")) for _ in range(2)]
            assert [answer.status_code for answer in found] == [200, 429]
            labels = {f"{name}.dispatch": 3, f"{name}.dispatch-2": 2, f"{name}.dispatch-3": 1}
            assert {label: one["q"] for label, one in fields(found[0])[0].items()} == labels
            assert all(any(f"rate:{__name__}.{label}:ip" in key for key in all_keys()) for label in labels)

    def test_several_limits(self) -> None:
        """The inner one doesn't count what the outer one refuses. Fields are lists of all limits."""
        seen: list[int] = []

        @rate_limit("2/h", key="ip", name="outer")
        @rate_limit("3/h", key="get:q", name="inner")
        def view(request: Any) -> HttpResponse:
            seen.append(request.rate_limit.remaining)
            return HttpResponse()

        found = [view(FACTORY.get("/", {"q": "a"})) for _ in range(3)]
        assert [answer.status_code for answer in found] == [200, 200, 429]
        assert seen == [1, 0]
        assert {name: one["r"] for name, one in fields(found[1])[1].items()} == {"inner": 1, "outer": 0}
        assert set(fields(found[2])[1]) == {"outer"}
        other = view(FACTORY.get("/", {"q": "a"}, REMOTE_ADDR="2.2.2.2"))
        assert fields(other)[1]["inner"]["r"] == 0

    def test_several_rates(self) -> None:
        view = rate_limit(["2/m", "3/30 days"], name='A "quoted" \\ ünïque\nname')(ok)
        policies, now = fields(ask(view))
        name = r"A \"quoted\" \\ %C3%BCn%C3%AFque%0Aname"
        assert policies == {f"{name}/60s": {"q": 2, "w": 60}, f"{name}/2592000s": {"q": 3, "w": 2592000}}
        assert now == {f"{name}/60s": {"r": 1, "t": 30}}

    def test_window(self) -> None:
        view = rate_limit("2/m", name="w", algorithm="window")(ok)
        assert [fields(ask(view))[1]["w"] for _ in range(3)] == [{"r": left, "t": 60} for left in (1, 0, 0)]

    def test_burst(self) -> None:
        assert statuses(rate_limit("60/m", burst=2)(ok), 3) == [200, 200, 429]

    def test_view_decides(self) -> None:
        """By the limit that denies, even if another one has less left."""

        @rate_limit("9/h", cost=5, block=False)
        @rate_limit("2/h", block=False)
        def view(request: Any) -> HttpResponse:
            return HttpResponse(status=200 if request.rate_limit.allowed else 418)

        assert statuses(view, 2) == [200, 418]

    def test_methods(self) -> None:
        view = rate_limit("1/h", methods=["GET"])(ok)
        assert statuses(view, 2, method="POST") == [200, 200]
        assert "RateLimit" not in ask(view, method="POST")
        assert [ask(view, method=method).status_code for method in ("HEAD", "GET")] == [200, 429]

    def test_cost(self) -> None:
        view = rate_limit("5/h", cost=lambda request: len(request.GET))(ok)
        cheap, expensive = FACTORY.get("/"), FACTORY.get("/", {"a": 1, "b": 1, "c": 1})
        assert [view(one).status_code for one in (expensive, expensive, cheap)] == [200, 429, 200]
        assert cheap.rate_limit.remaining == 5
        impossible = view(FACTORY.get("/", dict.fromkeys("abcdef", "1")))
        assert (impossible.status_code, impossible["Retry-After"]) == (429, "3600")
        for error, cost, text in ((InvalidArgument, -1, "returned -1"), (TypeError, "1", "not str")):
            with pytest.raises(error, match=rf"The cost function .+{text}"):
                ask(rate_limit("5/h", cost=lambda request, cost=cost: cost)(ok))  # type: ignore[misc]

    @pytest.mark.parametrize(
        ("error", "options"),
        [
            (InvalidArgument, {"rate": "many"}),
            (TypeError, {"rate": ["5/m", 5]}),
            *((InvalidArgument, {"cost": cost}) for cost in (-1, 6)),
            (InvalidArgument, {"cost": 3, "burst": 2}),
            (TypeError, {"cost": "1"}),
            *((InvalidArgument, {"key": key}) for key in ("users", "header:", "cookie:a", [])),
            *((TypeError, {"key": key}) for key in ([5], async_ok)),
            (TypeError, {"methods": "POST"}),
            *((InvalidArgument, {"methods": methods}) for methods in (["post"], ["POTS"], [])),
        ],
    )
    def test_invalid_arguments(self, error: type[Exception], options: dict[str, Any]) -> None:
        with pytest.raises(error):
            rate_limit(**{"rate": "5/m", **options})

    def test_responses_that_are_none(self) -> None:
        """Django reports what a view returns instead."""
        assert ask(rate_limit("1/h", name="none")(lambda request: None)) is None


def same(key: Any, *requests: HttpRequest, users: tuple[Any, ...] = (None, None)) -> bool:
    """Whether two requests count as one."""
    view = rate_limit("1/h", key, name=f"same-{time.monotonic_ns()}")(ok)
    for request, user in zip(requests, users, strict=True):
        if user is not None:
            request.user = user
    first, second = (view(request).status_code for request in requests)
    assert first == 200
    return bool(second == 429)


def get(headers: dict[str, str] | None = None, address: str = "1.1.1.1", **data: str) -> HttpRequest:
    return FACTORY.get("/", data, headers=headers, REMOTE_ADDR=address)


def post(address: str = "1.1.1.1", **data: Any) -> HttpRequest:
    return FACTORY.post("/", data, REMOTE_ADDR=address)


def first_of(request: HttpRequest) -> str:
    return request.GET["a"]


def second_of(request: HttpRequest) -> str:
    return request.GET["b"]


class TestKeys:
    def test_users(self, person: Person) -> None:
        ann, bob = person("ann"), person("bob")
        for key in ("user", "user_or_ip"):
            assert same(key, get(), get(address="2.2.2.2"), users=(ann, User.objects.get(pk=ann.pk)))
            assert not same(key, get(), get(), users=(ann, bob))
        assert not same("user_or_ip", get(), get(), users=(ann, AnonymousUser()))
        assert same("user_or_ip", get(), get(), users=(AnonymousUser(), AnonymousUser()))

    def test_some_users(self, person: Person) -> None:
        """With both, each kind of user has a rate of its own."""
        view = rate_limit("1/h", "anonymous")(rate_limit("3/h", "user")(ok))
        assert statuses(view, 2) == [200, 429]
        assert statuses(view, 4, user=person("ann")) == [200, 200, 200, 429]

    def test_without_authentication(self) -> None:
        assert same("user_or_ip", get(), get())
        assert not same("user", get(), get())

    def test_user_of_async_views_is_read_without_blocking(self, person: Person, settings: Settings) -> None:
        settings.ROOT_URLCONF = __name__
        for name in ("ann", "bob"):
            client = AsyncClient()
            client.force_login(person(name))
            assert [async_to_sync(client.get)("/mine/").status_code for _ in range(2)] == [200, 429]

    @pytest.mark.parametrize("url", ["mine", "user"])
    def test_user_that_a_middleware_has_set(self, url: str, person: Person, settings: Settings) -> None:
        """Not that of the session, also in async views."""
        settings.ROOT_URLCONF = __name__
        settings.MIDDLEWARE = [*settings.MIDDLEWARE, f"{__name__}.Impersonation"]
        person("bob")
        found = []
        for user in (person("ann"), person("cat")):
            client = AsyncClient()
            client.force_login(user)
            found += [async_to_sync(client.get)(f"/{url}/?as={name}").status_code for name in ("bob", user)]
        assert found == [200, 200, 429, 200]

    def test_new_session_is_the_same_user(self, person: Person, settings: Settings) -> None:
        settings.ROOT_URLCONF, ann = __name__, person("ann")
        found = []
        for _ in range(2):
            client = Client()
            client.force_login(ann)
            found.append(client.get("/user/").status_code)
        assert found == [200, 429]

    @pytest.mark.parametrize(
        ("key", "first", "second", "expected"),
        [
            ("ip", get(), get(), True),
            ("ip", get(), get(address="1.1.1.2"), False),
            ("header:X-Api-Key", get({"X-Api-Key": "k"}), get({"x-api-key": " k "}, "2.2.2.2"), True),
            ("header:X-Api-Key", get({"X-Api-Key": "k"}), get({"X-Api-Key": "K"}), False),
            ("get:q", get(q="Straße "), get(q="STRASSE", address="2.2.2.2"), True),
            ("get:q", get(q="a" * 999 + "b"), get(q="a" * 999 + "c"), False),
            ("post:username", post(username="ann"), post(username=" \uff21NN", address="2.2.2.2"), True),
            ("post:username", post(username="ann"), post(username="bob"), False),
            ("post:username", post(username="ann"), post("2.2.2.2", username=" " * 1001 + "Ann"), True),
            ("get:q", get(q="a" * 1001 + "b"), get(q="a" * 1001 + "c"), False),
            ("get:q", get(q="a" * 1001), get(q="A" * 1001 + " ", address="2.2.2.2"), True),
            # what is missing or empty counts by address, whatever is missing
            ("post:username", post(), post(username=" "), True),
            ("post:username", post(), post(address="2.2.2.2"), False),
            ("header:X-Api-Key", get(), get({"X-Api-Key": ""}), True),
            (lambda request: request.GET["q"], get(q="a"), get(q="a", address="2.2.2.2"), True),
            (lambda request: None, get(), get(), False),
            (lambda request: "", get(), get(address="2.2.2.2"), True),
            (("ip", "get:q"), get(q="a"), get(q="a"), True),
            (("ip", "get:q"), get(q="a"), get(q="b"), False),
            (("ip", "get:q"), get(q="a"), get(q="a", address="2.2.2.2"), False),
            (("ip", lambda request: None), get(), get(), False),
            # parts can't be shifted
            (("get:a", "get:b"), get(a="x|get:b:y", b="z"), get(a="x", b="y|get:b:z"), False),
            ((first_of, second_of), get(a="x|y", b="z"), get(a="x", b="y|z"), False),
        ],
    )  # fmt: skip
    def test_values(self, key: Any, first: HttpRequest, second: HttpRequest, expected: bool) -> None:
        assert same(key, first, second) is expected

    def test_a_large_file_is_no_way_around_a_limit(self, settings: Settings) -> None:
        """Django reads fields beside files of any size, and refuses large fields."""
        settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 400
        padded = post("1.1.1.1", username="ann", file=ContentFile(b"x" * 2000, "padding"))
        assert same("post:username", post("2.2.2.2", username="ann"), padded)
        with pytest.raises(RequestDataTooBig):
            same("post:username", post(username="ann"), post(username="ann", more="x" * 400))

    def test_interrupted_bodies_count_by_address(self) -> None:
        def interrupted(request: HttpRequest) -> HttpRequest:
            def read(*args: Any) -> bytes:
                raise OSError("the client is gone")

            request._stream = mock.Mock(spec=["read"], read=read)  # type: ignore[attr-defined]
            return request

        assert not same("post:username", post(username="ann"), interrupted(post(username="ann")))
        view = async_to_sync(rate_limit("1/h", "post:username", name="gone")(async_ok))
        requests = [interrupted(ASYNC_FACTORY.post("/", {"username": "ann"})) for _ in range(2)]  # type: ignore[arg-type]
        assert [view(request).status_code for request in requests] == [200, 429]

    def test_async_views_parse_bodies_in_threads(self) -> None:
        """The event loop can't wait for that."""
        request: Any = ASYNC_FACTORY.post("/", {"username": "ann"})
        threads = []
        load = request._load_post_and_files
        request._load_post_and_files = lambda: (threads.append(threading.get_ident()), load())

        async def ask_and_return_thread() -> int:
            answer: Any = await rate_limit("1/h", "post:username", name="large")(async_ok)(request)
            assert answer.status_code == 200
            return threading.get_ident()

        loop = asyncio.run(ask_and_return_thread())
        assert len(threads) == 1 and threads[0] != loop
        assert RateLimit("large", "1/h").reset("post:username:ann")

    def test_key_functions_return_text(self) -> None:
        with pytest.raises(TypeError, match="must return a str or None, not int"):
            ask(rate_limit("1/h", lambda request: 5)(ok))  # type: ignore[arg-type, return-value]

    def test_what_is_stored(self) -> None:
        """Names are readable, and can be reset; secrets and long values are digests."""
        for key, request in {
            "post:username": post(username="Ann@Example.com"),
            "header:X-Api-Key": get({"X-Api-Key": "secret"}),
            "get:q": get(q="what is it?"),
        }.items():
            rate_limit("1/h", key, name="stored")(ok)(request)
        stored = " ".join(all_keys())
        assert "secret" not in stored
        assert "what" not in stored
        assert RateLimit("stored", "1/h").reset("post:username:ann@example.com")

    @settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
    @given(st.text(st.characters(codec=None), max_size=400), st.text(max_size=200))
    def test_no_value_is_an_error(self, value: str, forwarded: str) -> None:
        request = FACTORY.get("/", REMOTE_ADDR=forwarded)
        request.GET = {"q": value}  # type: ignore[assignment]
        request.META |= {"HTTP_X_KEY": value, "HTTP_X_FORWARDED_FOR": forwarded}
        for key in ("get:q", "header:X-Key", "ip", ("ip", "get:q"), lambda request: request.GET["q"]):
            assert rate_limit("10000/s", key, name="any")(ok)(request).status_code == 200


class TestAddresses:
    @pytest.mark.parametrize(
        ("peer", "forwarded", "client"),
        [
            ("10.0.0.1", "9.9.9.9", "9.9.9.9"),
            ("10.0.0.1", "made.up, 8.8.8.8, 9.9.9.9", "9.9.9.9"),
            ("10.0.0.1", "8.8.8.8,9.9.9.9 , 10.0.0.2,10.0.0.3", "9.9.9.9"),
            ("10.0.0.1", "10.0.0.9, 10.0.0.2", "10.0.0.9"),
            ("10.0.0.1", "9.9.9.9:1234", "9.9.9.9"),
            ("10.0.0.1", "[2001:db8::1]:1234", "2001:db8::1"),
            ("10.0.0.1", "::ffff:9.9.9.9", "9.9.9.9"),
            ("::ffff:10.0.0.1", "9.9.9.9", "9.9.9.9"),
            ("2001:db8:5::7", "9.9.9.9", "9.9.9.9"),
            ("", "9.9.9.9", "9.9.9.9"),
            # not by a proxy: it counts itself
            ("9.9.9.9", "8.8.8.8", "9.9.9.9"),
            ("10.0.0.1", "", "10.0.0.1"),
            ("10.0.0.1", "8.8.8.8, unknown", "10.0.0.1"),
            ("10.0.0.1", "8.8.8.8, unknown, 10.0.0.2", "10.0.0.2"),
            ("10.0.0.1", "9.9.9.9, ", "10.0.0.1"),
            ("10.0.0.1", "9" * 5000, "10.0.0.1"),
            # no address, and no Unix socket either: all count together
            ("?", "9.9.9.9", "unknown"),
        ],
    )
    def test_client_behind_proxies(self, peer: str, forwarded: str, client: str, settings: Settings) -> None:
        change(settings, TRUSTED_PROXIES=["10.0.0.0/8", "2001:db8:5::/48", "unix"])
        proxied = get({"X-Forwarded-For": forwarded}, peer)
        assert same("ip", proxied, get(address=client))

    def test_without_trusted_proxies_the_header_is_ignored(self) -> None:
        assert same("ip", get({"X-Forwarded-For": "8.8.8.8"}), get({"X-Forwarded-For": "9.9.9.9"}))

    def test_ipv6_counts_by_network(self) -> None:
        assert same("ip", get(address="2001:db8::1"), get(address="2001:db8:0:0:ffff::1%eth0"))
        assert not same("ip", get(address="2001:db8::1"), get(address="2001:db8:0:1::1"))
        assert same("ip", get(address="::ffff:1.1.1.1"), get(address="1.1.1.1"))

    def test_translated_ipv4_addresses(self) -> None:
        """Otherwise all clients behind NAT64 would count as one."""
        assert same("ip", get(address="64:ff9b::101:101"), get(address="1.1.1.1"))
        assert not same("ip", get(address="64:ff9b::101:101"), get(address="64:ff9b::202:202"))

    def test_addresses_in_headers_of_providers(self) -> None:
        def provided(request: HttpRequest) -> str | None:
            return address_key(request.headers.get("CF-Connecting-IP"))

        first, same_network, none, no_address = (
            get({"CF-Connecting-IP": "2001:db8::1"}), get({"CF-Connecting-IP": "2001:db8::2"}), get(),
            get({"CF-Connecting-IP": "9.9.9.9, 8.8.8.8"}),
        )  # fmt: skip
        assert same(provided, first, same_network)
        assert provided(none) is provided(no_address) is None

    def test_unknown_addresses_count_together_and_are_reported_once(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(request_keys, "_is_reported", False)
        assert same("ip", get(address="no address"), get({"X-Forwarded-For": "9.9.9.9"}, "none either"))
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "TRUSTED_PROXIES" in caplog.text


class TestAnswers:
    def answer(self, accept: str | None, rate: str = "1/m", **options: Any) -> Any:
        view = rate_limit(rate, name=f"answer-{time.monotonic_ns()}", **options)(ok)
        headers = {} if accept is None else {"Accept": accept}
        answers = [view(FACTORY.get("/", headers=headers)) for _ in range(2)]
        return answers[1].render() if hasattr(answers[1], "render") else answers[1]

    @pytest.mark.parametrize(
        "accept", [None, "*/*", "application/json", "application/json, */*", "image/png", ""]
    )
    def test_json(self, accept: str | None) -> None:
        answer = self.answer(accept)
        assert (answer.status_code, answer["Vary"], answer["Retry-After"]) == (429, "Accept", "60")
        assert json.loads(answer.content) == {
            "error": {"code": "too_fast", "message": "You are doing this too often. Wait a moment."}
        }

    @pytest.mark.parametrize("accept", [BROWSER, "text/html"])
    def test_page(self, accept: str) -> None:
        answer = self.answer(accept)
        assert (answer.status_code, answer["Content-Type"]) == (429, "text/html; charset=utf-8")
        page = answer.content.decode()
        assert "Too many requests" in page
        assert "Wait a moment" in page
        assert "You can try again in" not in page
        assert "You can try again in 2\xa0hours." in self.answer(BROWSER, "1/2h").content.decode()

    def test_translated(self) -> None:
        for language, text in {"de": "Zu viele Anfragen", "zh-hans": "请求过多"}.items():
            with translation.override(language):
                assert text in self.answer(BROWSER).content.decode()

    def test_page_of_the_site(self, settings: Settings) -> None:
        [engine] = settings.TEMPLATES
        loaders = [
            ("django.template.loaders.locmem.Loader", {"429.html": "Slow down: {{ retry_after }} s"}),
        ]
        options = {**engine["OPTIONS"], "loaders": loaders}
        settings.TEMPLATES = [{**engine, "APP_DIRS": False, "OPTIONS": options}]
        assert self.answer(BROWSER).content == b"Slow down: 60 s"


class TestOutage:
    @pytest.mark.parametrize("is_async", [False, True])
    def test_on_outage(self, away: None, is_async: bool) -> None:
        def limited(on_outage: Any) -> Any:
            limit = rate_limit("1/h", name="away", on_outage=on_outage)
            return async_to_sync(limit(async_ok)) if is_async else limit(ok)

        allowed = [limited("allow")(FACTORY.get("/")) for _ in range(2)]
        assert [answer.status_code for answer in allowed] == [200, 200]
        assert "RateLimit-Policy" in allowed[0]
        assert "RateLimit" not in allowed[0]
        denied = limited("deny")(FACTORY.get("/"))
        assert (denied.status_code, denied["Retry-After"]) == (503, "1")
        assert json.loads(denied.content)["error"]["code"] == "unavailable"
        page = limited("deny")(FACTORY.get("/", headers={"Accept": BROWSER})).render()
        assert "Temporarily unavailable" in page.content.decode()
        with pytest.raises(Unavailable):
            limited("raise")(FACTORY.get("/"))

    @pytest.mark.timing
    @pytest.mark.one_server
    @pytest.mark.parametrize("how", ["stopped", "frozen"])
    def test_deadline(self, fragile: EmbeddedServer, connect: Connect, how: str) -> None:
        """The first requests wait for the deadline, those of the next moment don't; then it counts again."""
        connect(fragile)
        view = rate_limit("1/h", name="stopped")(ok)
        with unavailable(fragile, how):
            began = time.monotonic()
            assert statuses(view, 30) == [200] * 30
            assert time.monotonic() - began < 5
        until(lambda: ask(view).status_code == 429)

    @pytest.mark.parametrize("is_async", [False, True])
    def test_single_failures_do_not_open_limits(self, is_async: bool) -> None:
        """A call may fail because the process is busy. Three in succession pause limits of the same deadline,
        until a reply."""
        replies: list[bool] = []

        def limited(**options: Any) -> Callable[[], int]:
            limit = rate_limit("1/h", name="busy", **options)
            view: Any = async_to_sync(limit(async_ok)) if is_async else limit(ok)
            return lambda: int(view(FACTORY.get("/")).status_code)

        def reply(limit: RateLimit, key: str, cost: int) -> Decision:
            known = replies.pop(0)
            return Decision(
                allowed=not known,
                remaining=0,
                retry_after=1.0,
                reset_after=1.0,
                rate=limit.rates[0],
                known=known,
            )

        async def areply(limit: RateLimit, key: str, cost: int) -> Decision:
            return reply(limit, key, cost)

        ask, other = limited(), limited(deadline=0.7)
        with mock.patch.object(RateLimit, "take", reply), mock.patch.object(RateLimit, "atake", areply):
            replies[:] = [False, False, True, False, False, True]
            assert [ask() for _ in range(6)] == [200, 200, 429, 200, 200, 429]
            replies[:] = [False, False, False, True]
            assert [ask() for _ in range(9)] == [200] * 9
            assert other() == 429
            assert replies == []


class Impersonation(MiddlewareMixin):
    """A middleware of the site: its users see it as others do."""

    def process_request(self, request: HttpRequest) -> None:
        name = request.GET.get("as")
        request.user = SimpleLazyObject(lambda: User.objects.get(username=name))  # type: ignore[assignment]


@rate_limit("1/h", "user")
def of_user(request: HttpRequest) -> HttpResponse:
    return HttpResponse("yours")


@rate_limit("1/h")
async def mine(request: HttpRequest) -> HttpResponse:
    return HttpResponse("mine")


urlpatterns = [
    path("api/", ok),
    path("api/health/", ok),
    path("async/", async_ok),
    path("user/", of_user),
    path("mine/", mine),
]
OURS = "django_redis_messaging.middleware.RateLimitMiddleware"


@pytest.fixture
def limited(settings: Settings) -> Callable[..., None]:
    """Adds the middleware with these rules."""

    def add(*rules: dict[str, Any]) -> None:
        settings.ROOT_URLCONF = __name__
        settings.MIDDLEWARE = [*settings.MIDDLEWARE, OURS]
        change(settings, RATE_LIMITS=rules)

    return add


class TestMiddleware:
    def test_paths(self, limited: Callable[..., None]) -> None:
        limited({"rate": "2/h", "path": "/api/", "exclude": ["/api/health/"], "methods": ["GET"]})
        client = Client()
        found = [client.get(path) for path in ("/api/", "/api/none/", "/api/", "/api/health/", "/async/")]
        assert [answer.status_code for answer in found] == [200, 404, 429, 200, 200]
        assert fields(found[1])[1] == {"/api/": {"r": 0, "t": 1800}}
        assert "RateLimit" not in found[4]
        assert client.post("/api/").status_code == 200

    def test_async(self, limited: Callable[..., None], person: Person) -> None:
        limited({"rate": "1/h", "name": "all"})
        for name in ("ann", "bob"):
            client = AsyncClient()
            client.force_login(person(name))
            first, second = (
                async_to_sync(client.get)("/async/", headers={"Accept": BROWSER}) for _ in range(2)
            )
            assert (first.status_code, second.status_code) == (200, 429)
            assert b"Too many requests" in second.content

    def test_all_rules_count(self, limited: Callable[..., None]) -> None:
        limited({"rate": "5/h"}, {"rate": "3/h", "key": "ip"}, {"rate": "1/h", "path": ["/user/", "/mine/"]})
        client = Client(headers={"Accept": BROWSER})
        policies = {"/": {"q": 5, "w": 3600}, "/#2": {"q": 3, "w": 3600}}
        assert fields(client.get("/api/"))[0] == policies
        answers = [client.get("/mine/") for _ in range(2)]
        assert b"Too many requests" in answers[1].content
        # those of the view are behind those of the middleware
        assert list(fields(answers[0])[0]) == ["mine", *policies, "/user/"]

    def test_settings_take_effect_at_once(self, limited: Callable[..., None]) -> None:
        limited({"rate": "1/h"})
        client = Client()
        assert [client.get("/api/").status_code for _ in range(2)] == [200, 429]
        with override_settings(REDIS_MESSAGING={}):
            assert client.get("/api/").status_code == 200
