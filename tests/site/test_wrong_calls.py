"""Mistakes of the first hour: each error names the mistake and what to do about it."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.template import RequestContext, Template
from django.test import RequestFactory, override_settings
from redis.connection import parse_url

from django_redis_messaging import (
    Chat,
    ConfigurationError,
    DelayQueue,
    Directory,
    Expiry,
    Inbox,
    InvalidArgument,
    Lock,
    LockError,
    Mailbox,
    RateLimit,
    Semaphore,
    Unavailable,
    notify,
    notify_many,
)
from django_redis_messaging.core import clients
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.web import identity

pytestmark = [pytest.mark.one_server, pytest.mark.versions, pytest.mark.usefixtures("closing")]

LOCMEM = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
#: a type checker finds most of them, too
wrong: Any = lambda value: value  # noqa: E731
#: mistake → call, error, and a pattern for its text
CALLS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "no body": (lambda: wrong(Chat("team")).send("hi"), TypeError, "Chat.send.*missing.*'body'"),
    "a name as recipients": (
        lambda: Chat.create("ann", "bob"),
        TypeError,
        "recipients must be a list.*wrap it in a list",
    ),
    "a manager as recipients": (
        lambda: Chat.create("ann", wrong(User.objects)),
        TypeError,
        r"recipients must be a list of users, not UserManager: call \.all\(\)",
    ),
    "a number as a user": (
        lambda: Chat.create(wrong(5), ["bob"]),
        TypeError,
        r"sender must be a str or a user object, not int: .*str\(user.pk\)",
    ),
    "a level of another library": (
        lambda: notify("ann", "x", level=wrong("warn")),
        InvalidArgument,
        "level must be one of 'info', 'success', 'warning', 'error', not 'warn'",
    ),
    "a link elsewhere": (
        lambda: notify("ann", "x", url="https://elsewhere.example/"),
        InvalidArgument,
        "reverse.*LINK_HOSTS",
    ),
    "a name as users": (
        lambda: notify_many("ann", "x"),
        TypeError,
        "users must be a list.*wrap it in a list",
    ),
    "None as users": (
        lambda: notify_many(wrong(None), "x"),
        TypeError,
        r"users must be a list of users, not NoneType\.$",
    ),
    "an id as ids": (
        lambda: Mailbox("ann").mark_read(wrong(5)),
        TypeError,
        "ids must be a list.*wrap it in a list",
    ),
    "a rate in words": (
        lambda: RateLimit("api", "5 per minute"),
        InvalidArgument,
        'form such as "5/m"',
    ),
    "a rate without a period": (lambda: RateLimit("api", 5), InvalidArgument, 'needs per=.*"5/m"'),
    "an object in a job": (
        lambda: DelayQueue("mails").push(User(pk=3)),
        TypeError,
        "data must be made of None, bool, int.*type User",
    ),
    "a word as a delay": (
        lambda: Expiry("order").start("1", wrong("tomorrow")),
        TypeError,
        "after must be seconds or a timedelta, not str",
    ),
    "a dict as pairs": (
        lambda: Directory("all").add_many(wrong({"1": "Ann"})),
        TypeError,
        r"pairs must contain \(member, label\) tuples",
    ),
    "a release without acquire": (lambda: Lock("report").release(), LockError, "hasn't acquired it"),
    "no limit": (lambda: wrong(Semaphore)("api"), TypeError, "missing.*'limit'"),
    "an alias that CACHES lacks": (
        lambda: Inbox("ann", using="chats").unread(),
        ConfigurationError,
        "no django-redis entry 'chats': add one, or set ALIAS.*`manage.py check` prints an entry",
    ),
}


@pytest.mark.parametrize("mistake", CALLS)
def test_arguments(mistake: str) -> None:
    call, error, text = CALLS[mistake]
    with pytest.raises(error, match=text):
        call()


@contextmanager
def at(location: str, **entry: Any) -> Iterator[None]:
    """Use this server, with little patience."""
    ours = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location, **entry}
    caches = {"default": LOCMEM, "messaging": ours}
    with override_settings(CACHES=caches, REDIS_MESSAGING={"COMMAND_DEADLINE": 0.2}):
        yield
        clients.close()


class TestServer:
    @pytest.mark.parametrize(
        ("location", "named"),
        [
            ("redis://127.0.0.1:1/0", "127.0.0.1:1"),
            ("unix:///nowhere.sock?db=0", "/nowhere.sock"),
            ("redis://redis.invalid:6379/0", "redis.invalid:6379"),
        ],
    )
    def test_not_running(self, location: str, named: str) -> None:
        with (
            at(location),
            pytest.raises(Unavailable, match=r"Start the server.*correct its LOCATION") as raised,
        ):
            Inbox("ann").unread()
        assert named in str(raised.value)

    def test_password(self) -> None:
        with EmbeddedServer() as server, server.client() as admin:
            admin.execute_command("ACL SETUSER ann on >secret +@all")
            admin.execute_command("ACL SETUSER default >secret")
            wrong_user = server.url.replace("unix://", "unix://ann:wrong@")
            for location, options in ((server.url, {}), (wrong_user, {}), (server.url, {"PASSWORD": "no"})):
                own = f"{location}&client_name=wrong-{len(options)}"
                with at(own, OPTIONS=options), pytest.raises(ConfigurationError) as raised:
                    Inbox("ann").unread()
                named, default = (parse_url(url) for url in re.findall(r"redis://[^\"]+", str(raised.value)))
                assert (named["username"], named["password"]) == ("USER", "PASSWORD")
                assert (default.get("username"), default["password"]) == (None, "PASSWORD")

    def test_acl(self) -> None:
        with EmbeddedServer() as server, server.client() as admin:
            for denied, words in (("evalsha", "'evalsha'"), ("hset", "user executing the script")):
                admin.execute_command(f"ACL SETUSER {denied} on >secret ~* +@all -{denied}")
                url = server.url.replace("unix://", f"unix://{denied}:secret@")
                with at(url), pytest.raises(ConfigurationError, match=rf"{words}.*docs/security\.md"):
                    Chat.create("ann", ["bob"])

    @pytest.mark.parametrize("backend", ["locmem.LocMemCache", "redis.RedisCache"])
    def test_cache_of_django(self, backend: str) -> None:
        dotted = f"django.core.cache.backends.{backend}"
        with at("redis://127.0.0.1:1", BACKEND=dotted), pytest.raises(ConfigurationError) as raised:
            Inbox("ann").unread()
        assert f"no django-redis entry 'messaging' (its BACKEND is {dotted})" in str(raised.value)


class TestSite:
    @pytest.mark.parametrize(
        ("given", "text"),
        [
            (["messaging"], "REDIS_MESSAGING must be a dict, not list"),
            ({"OBSERVE": "shop.metrics.observe"}, "OBSERVE.*'shop.metrics.observe', which can't be imported"),
        ],
    )
    def test_settings(self, given: object, text: str) -> None:
        with override_settings(REDIS_MESSAGING=given), pytest.raises(ConfigurationError, match=text):
            Inbox("ann").unread()

    def test_identity(self) -> None:
        other = override_settings(REDIS_MESSAGING={"IDENTITY": f"{__name__}.TestSite"})
        with other, pytest.raises(ConfigurationError, match="which is not a subclass of Identity"):
            identity.current()

    def test_urls(self) -> None:
        request = RequestFactory().get("/")
        request.user = User(pk=3, username="ann")
        page = Template("{% load messaging %}{% messaging_bell %}")
        other = override_settings(ROOT_URLCONF="django.contrib.auth.urls")
        with other, pytest.raises(ConfigurationError, match=r'include\("django_redis_messaging\.urls"\)'):
            page.render(RequestContext(request))


class TestAsync:
    def test_missing_await(self) -> None:
        with pytest.warns(RuntimeWarning, match="coroutine 'Inbox.aunread' was never awaited"):
            wrong(Inbox("ann")).aunread()
            gc.collect()

    async def test_await_of_a_sync_operation(self) -> None:
        with pytest.raises(TypeError, match="object int can't be used in 'await' expression"):
            await wrong(Inbox("ann")).unread()
