"""For the tests of sites that use this app. See docs/testing.md.

Nothing is needed to keep tests away from the site's server: see core/runs.py. The mixin isolates the tests of
a class from each other; with pytest, the fixture `messaging_prefix` does the same.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any, ClassVar

from . import conf, handlers, isolation
from .core import runs
from .errors import ConfigurationError, InvalidArgument
from .services.expiries import Expiry
from .services.jobs.worker import Limits
from .services.listening.listener import Listener

#: seconds that a handler may take
FIRING_TIMEOUT = 30

if TYPE_CHECKING:
    from unittest import TestCase as _Base
else:
    _Base = object  # the classes that it is mixed into are subclasses of unittest.TestCase


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
    _redirection: ClassVar[isolation.Redirection | None]

    @classmethod
    def setUpClass(cls) -> None:
        cls._redirection = cls.enterClassContext(isolation.redirected())
        super().setUpClass()

    def __call__(self, *args: Any, **kwds: Any) -> Any:
        # not in setUp: Django's fixtures are loaded before
        run = runs.current()
        if run is None or run.error:  # the class is skipped, else its setUpClass has failed
            return super().__call__(*args, **kwds)
        self.messaging_prefix = run.new_prefix()
        self.addCleanup(self._end_isolation, run)
        with run.prefix.instead(self.messaging_prefix):
            return super().__call__(*args, **kwds)

    def _end_isolation(self, run: isolation.Run) -> None:
        isolation.remove_all(self.messaging_prefix, [conf.alias()], self._redirection)
        lost = isolation.problems(run.prefix, self._redirection)
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
