"""DeadlineMiddleware, under real servers, with WSGI and with ASGI."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import urlopen
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest
from asgiref.sync import iscoroutinefunction
from django.core.wsgi import get_wsgi_application
from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.urls import include, path
from pytest_django import Settings

from django_redis_messaging import Broadcast, Chat, OutcomeUnknown, Unavailable, anotify, deadline, notify
from django_redis_messaging.core.outcome import time_left
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.middleware import DeadlineMiddleware

from ..support.asgi_site import EventSource, serving
from ..support.faults import Connect, unavailable
from ..support.people import Member
from ..support.server import change

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.one_server,
    pytest.mark.versions,
]

OURS = "django_redis_messaging.middleware.DeadlineMiddleware"
#: seconds
DEADLINE = 0.8
#: seconds: a call begun after the deadline waits 0.1 s for its reply; and a busy machine. Without a deadline,
#: each of CALLS would wait for COMMAND_DEADLINE
AT_MOST = 5.0
#: number of notifications that a view sends
CALLS = 5
#: what tasks that outlived their request had left
left_later: list[float] = []


def notify_all(request: HttpRequest) -> HttpResponse:
    """Best effort."""
    errors = []
    for number in range(CALLS):
        try:
            notify("ann", f"Order {number}")
        except (Unavailable, OutcomeUnknown) as error:
            errors.append(type(error).__name__)
    return JsonResponse(errors, safe=False)


async def anotify_all(request: HttpRequest) -> HttpResponse:
    errors = []
    for number in range(CALLS):
        try:
            await anotify("ann", f"Order {number}")
        except (Unavailable, OutcomeUnknown) as error:
            errors.append(type(error).__name__)
    return JsonResponse(errors, safe=False)


def notify_on_commit(request: HttpRequest) -> HttpResponse:
    with transaction.atomic():
        for number in range(CALLS):
            # a lambda, because Django 5.2 logs the qualified name, which a partial lacks
            transaction.on_commit(lambda number=number: notify("ann", f"Order {number}"), robust=True)
    return JsonResponse([], safe=False)


def show_limits(request: HttpRequest) -> HttpResponse:
    """The seconds left in the view, and in a shorter and a longer block."""
    found = [time_left()]
    for seconds in (DEADLINE / 4, 60):
        with deadline(seconds):
            found.append(time_left())
    return JsonResponse(found, safe=False)


def wait_in_content(request: HttpRequest) -> StreamingHttpResponse:
    """Content that waits for events for longer than the deadline."""

    def content() -> Iterator[str]:
        yield json.dumps(Broadcast("empty").fetch(wait=2 * DEADLINE).events)

    async def acontent() -> AsyncIterator[str]:
        yield json.dumps((await Broadcast("empty").afetch(wait=2 * DEADLINE)).events)

    return StreamingHttpResponse(acontent() if hasattr(request, "scope") else content())


async def begin_task(request: HttpRequest) -> HttpResponse:
    """Answer while a task of the view goes on."""
    over = asyncio.Event()

    async def outlive() -> None:
        await over.wait()
        left_later.append(time_left())

    task = asyncio.get_running_loop().create_task(outlive())
    response = JsonResponse([time_left()], safe=False)
    response._resource_closers.append(over.set)  # called when the response has been sent
    request.outliving = task  # the loop keeps a weak reference
    return response


urlpatterns = [
    path("sync/", notify_all),
    path("async/", anotify_all),
    path("commit/", notify_on_commit),
    path("limits/", show_limits),
    path("stream/", wait_in_content),
    path("task/", begin_task),
    path("messages/", include("django_redis_messaging.urls")),
]


class SilentHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serving_wsgi() -> Iterator[str]:
    with make_server("127.0.0.1", 0, get_wsgi_application(), handler_class=SilentHandler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@contextmanager
def serving_asgi() -> Iterator[str]:
    with serving() as site:
        yield site.url


SERVERS = {"wsgi": serving_wsgi, "asgi": serving_asgi}


@pytest.fixture
def limited(settings: Settings) -> None:
    """The site has the middleware, and the views of this module."""
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = [OURS, *settings.MIDDLEWARE]
    change(settings, WEB_DEADLINE=DEADLINE)


@pytest.fixture(params=SERVERS)
def url(limited: None, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of the site."""
    with SERVERS[request.param]() as found:
        yield found


def answer(url: str) -> Any:
    with urlopen(url, timeout=30) as response:  # noqa: S310 (of the test's own server)
        return json.loads(response.read())


@pytest.mark.timing
@pytest.mark.parametrize("view", ["sync", "async", "commit"])
def test_the_calls_of_a_request_have_one_deadline(
    view: str, url: str, connect: Connect, fragile: EmbeddedServer
) -> None:
    connect(fragile, WEB_DEADLINE=DEADLINE)
    assert answer(f"{url}/{view}/") == []
    with unavailable(fragile):
        began = time.monotonic()
        errors = answer(f"{url}/{view}/")
        assert 0.9 * DEADLINE <= time.monotonic() - began <= AT_MOST
    if view != "commit":  # whose errors Django logs
        assert len(errors) == CALLS
    assert answer(f"{url}/{view}/") == []


def test_a_block_in_a_view_can_only_shorten_it(url: str) -> None:
    view, shorter, longer = answer(f"{url}/limits/")
    assert 0 < shorter <= DEADLINE / 4
    assert longer <= view <= DEADLINE


@pytest.mark.timing
def test_it_ends_when_the_response_begins(url: str) -> None:
    assert answer(f"{url}/stream/") == []


def test_it_ends_for_tasks_that_outlive_the_request(limited: None, until: Callable[..., None]) -> None:
    left_later.clear()
    with serving_asgi() as url:
        [left] = answer(f"{url}/task/")
        assert 0 < left <= DEADLINE
        until(lambda: left_later == [math.inf])


@pytest.mark.timing
def test_live_streams_go_on(limited: None, ann: Member, bob: Member) -> None:
    chat = Chat.create(ann, [bob], "One")
    with serving() as site, EventSource(site, bob, room=chat.id) as source:
        source.until("room")
        time.sleep(2 * DEADLINE)  # the stream lasts longer than the deadline
        chat.send(ann, "Two")
        assert source.until("room", lambda data: data["messages"])


async def test_no_thread_between_async_views() -> None:
    """An adapter would answer in another task."""

    async def view(request: HttpRequest) -> HttpResponse:
        return JsonResponse([asyncio.current_task() is task, time_left() < math.inf], safe=False)

    task, middleware = asyncio.current_task(), DeadlineMiddleware(view)
    assert iscoroutinefunction(middleware)
    assert json.loads((await middleware(HttpRequest())).content) == [True, True]
    assert time_left() == math.inf
    assert not iscoroutinefunction(DeadlineMiddleware(lambda request: JsonResponse([], safe=False)))
