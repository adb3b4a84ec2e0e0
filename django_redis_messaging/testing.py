"""For the tests of sites that use this app. See docs/testing.md.

Nothing is needed to keep tests away from the site's server: see core/testruns.py. The mixin isolates the
tests of a class from each other; with pytest, the fixture `messaging_prefix` does the same.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any, ClassVar, Self

from django.conf import settings
from django.core.cache import caches
from django.core.signals import setting_changed
from django_redis import get_redis_connection

from . import conf, handlers
from .core import clients, testruns
from .core.commands import batched
from .core.testruns import Prefix, Run
from .core.topology import SCAN_COUNT, endpoint, key_pattern, remove_keys
from .errors import ConfigurationError, InvalidArgument
from .services.expiries import Expiry
from .services.jobs.worker import Limits
from .services.listening.listener import Listener

if TYPE_CHECKING:
    from unittest import TestCase as _Base
else:
    _Base = object  # the classes that it is mixed into are subclasses of unittest.TestCase

#: options of a django-redis entry that say where and how to connect
_CONNECTING = {
    "CLIENT_CLASS",
    "CONNECTION_FACTORY",
    "CONNECTION_POOL_CLASS",
    "CONNECTION_POOL_KWARGS",
    "PARSER_CLASS",
    "PASSWORD",
    "REDIS_CLIENT_CLASS",
    "REDIS_CLIENT_KWARGS",
    "SENTINELS",
    "SENTINEL_KWARGS",
    "SOCKET_CONNECT_TIMEOUT",
    "SOCKET_TIMEOUT",
    "USERNAME",
}

Caches = dict[str, dict[str, Any]]
#: seconds that a handler may take
FIRING_TIMEOUT = 30


class Redirection:
    """Lets all django-redis entries of CACHES that lead to the site lead to the private server of a run.

    Each gets a database of its own: those of the settings, and those that a test adds with override_settings.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._replaced: list[tuple[Caches, str, dict[str, Any]]] = []

    def __enter__(self) -> Self:
        for layer in list(testruns.layers("CACHES")):
            self._apply(layer)
        _announce(enter=True)
        setting_changed.connect(self._follow)
        return self

    def __exit__(self, *_: object) -> None:
        setting_changed.disconnect(self._follow)
        for alias in self.aliases():
            close_connections(alias)
        for layer, alias, entry in reversed(self._replaced):
            layer[alias] = entry
        _announce(enter=False)

    def aliases(self) -> list[str]:
        """The aliases that lead to the private server now."""
        current: Caches = caches.settings
        return [alias for alias, entry in current.items() if self._run.is_private(alias, entry)]

    def problems(self) -> list[str]:
        """A message for each alias that leads to the server of the site."""
        return [
            f"CACHES[{alias!r}] leads to the server of the site, since a test or a fixture has changed "
            "CACHES in place: use override_settings, or the settings fixture of pytest-django."
            for layer in (settings.CACHES, caches.settings)
            for alias, entry in layer.items()
            if self._run.is_of_site(entry)
        ]

    def _follow(self, *, setting: str, value: object = None, **_: object) -> None:
        if setting == "CACHES" and isinstance(value, dict):
            self._apply(value)

    def _apply(self, layer: Caches) -> None:
        for alias, entry in list(layer.items()):
            if self._run.is_of_site(entry):
                self._replaced.append((layer, alias, entry))
                layer[alias] = _redirected(entry, self._run.database(alias))


def _redirected(entry: Mapping[str, Any], location: str) -> dict[str, Any]:
    options = entry.get("OPTIONS") or {}
    kept = {name: value for name, value in options.items() if name not in _CONNECTING}
    return {**entry, "LOCATION": location, "OPTIONS": kept}


def _announce(*, enter: bool) -> None:
    """Let Django and this app make their clients anew."""
    setting_changed.send(type(settings), setting="CACHES", value=settings.CACHES, enter=enter)


def current_run() -> Run:
    """The run of tests of this process. Raises ConfigurationError if there is none or it has no server."""
    run = testruns.current()
    if run is None:
        raise ConfigurationError(
            "Django's test environment is not set up: run the tests with manage.py test or pytest-django, or "
            "call django.test.utils.setup_test_environment() before them."
        )
    if run.error:
        raise ConfigurationError(run.error)
    return run


@contextmanager
def redirected() -> Iterator[Redirection | None]:
    """Redirect CACHES within the block; None: the run uses the servers of CACHES."""
    run = current_run()
    if run.server is None:
        yield None
    else:
        with Redirection(run) as redirection:
            yield redirection


def problems(prefix: Prefix, redirection: Redirection | None) -> str:
    """Why a test is not isolated any more; empty if it is."""
    return "\n".join(prefix.problems() + (redirection.problems() if redirection else []))


def remove_all(prefix: str, aliases: Iterable[str], redirection: Redirection | None) -> None:
    """Remove the keys of a test, in these aliases and in all that are redirected."""
    redirected = set(redirection.aliases() if redirection else ())
    for alias in redirected:  # one server, and a connection that the next test uses again
        client = get_redis_connection(alias)
        for keys in batched(client.scan_iter(key_pattern(prefix), SCAN_COUNT), SCAN_COUNT):
            client.unlink(*keys)
    for alias in set(aliases) - redirected:
        remove_keys(endpoint(alias), prefix)


def close_connections(alias: str) -> None:
    """Close the blocking connections of the app and of django-redis."""
    clients.close()
    client: Any = get_redis_connection(alias)
    pool = getattr(client, "connection_pool", None)  # the driver's RedisCluster has none
    (client.close if pool is None else pool.disconnect)()


class MessagingTestMixin(_Base):
    """Each test of the class has its own keys, which are removed after it, and all django-redis aliases lead
    to the private server of the test run, each to a database of its own. It comes before Django's class:

        class WelcomeTests(MessagingTestMixin, TestCase):
            def test_welcome(self):
                Chat.create("support", ["ann"], "Welcome!")

    What setUpClass and setUpTestData write has the site's prefix; it ends with the run.

    A test fails if it ends without its prefix, or with an alias that leads to the server of the site.
    """

    #: the beginning of all keys of the test
    messaging_prefix = ""
    _redirection: ClassVar[Redirection | None]

    @classmethod
    def setUpClass(cls) -> None:
        cls._redirection = cls.enterClassContext(redirected())
        super().setUpClass()

    def __call__(self, *args: Any, **kwds: Any) -> Any:
        # not in setUp: Django's fixtures are loaded before
        run = testruns.current()
        if run is None or run.error:  # the class is skipped, else its setUpClass has failed
            return super().__call__(*args, **kwds)
        self.messaging_prefix = run.new_prefix()
        self.addCleanup(self._end_isolation, run)
        with run.prefix.instead(self.messaging_prefix):
            return super().__call__(*args, **kwds)

    def _end_isolation(self, run: Run) -> None:
        remove_all(self.messaging_prefix, [conf.alias()], self._redirection)
        lost = problems(run.prefix, self._redirection)
        if lost:
            self.fail(lost)


def fire(timers: Expiry, name: str) -> bool:
    """Make a timer due now and call its handler, as `run_listener` does: in another thread, after those of
    other timers of the namespace that are due. False if there is no such timer. Raises what the handler
    raises, and ConfigurationError if the namespace has no handler.

        fire(Expiry("order"), "17")
    """
    handlers.discover()
    handler = handlers.timers.get(timers.namespace)
    if handler is None:
        raise ConfigurationError(
            f"The timers {timers.namespace!r} have no handler: register one (@on_expiry)."
        )
    if timers._using != conf.alias():
        raise InvalidArgument(f"timers must use the alias {conf.alias()!r}, as listeners do.")
    if not timers.extend(name, 0.001):
        return False
    calls = _Calls(handler)
    recording = replace(handler, function=calls.call)
    while name not in calls.errors:
        limits = Limits(concurrency=1, max_tasks=1, max_time=FIRING_TIMEOUT)
        listener = Listener({timers.namespace: recording}, (), limits)
        listener.run()
        if not listener.done:
            return False
    if (error := calls.errors[name]) is not None:
        raise error
    return True


class _Calls:
    """The calls of a handler: what each raised, by the name of the timer."""

    def __init__(self, handler: handlers.TimerHandler) -> None:
        self.errors: dict[str, BaseException | None] = {}
        self._handler = handler

    def call(self, expired: handlers.Expired) -> Any:
        """Call the handler; a coroutine is awaited by the listener."""
        with self._recorded(expired.name):
            result = self._handler.function(expired)
        return self._awaited(expired.name, result) if iscoroutine(result) else result

    async def _awaited(self, name: str, coroutine: Coroutine[Any, Any, Any]) -> None:
        with self._recorded(name):
            await coroutine

    @contextmanager
    def _recorded(self, name: str) -> Iterator[None]:
        self.errors[name] = None
        try:
            yield
        except BaseException as error:
            self.errors[name] = error
            raise
