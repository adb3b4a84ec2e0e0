"""For the tests of sites that use this app. See docs/testing.md.

Nothing is needed to keep tests away from the site's server: see core/runs.py. The mixin isolates the tests of
a class from each other; with pytest, the fixture `messaging_prefix` does the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from . import conf, handlers, isolation
from .core import runs
from .errors import ConfigurationError
from .services.expiries import Expiry
from .services.jobs.limits import Limits
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
    """Make a timer due now and call its handler, as `run_listener` does: in another thread. False if there is
    no such timer. Raises ConfigurationError if its namespace has no handler.

        fire(Expiry("order"), "17")
    """
    handlers.discover()
    handler = handlers.timers.get(timers.namespace)
    if handler is None:
        raise ConfigurationError(
            f"The timers {timers.namespace!r} have no handler: register one (@on_expiry)."
        )
    if not timers.extend(name, 0.001):
        return False
    listener = Listener(
        {timers.namespace: handler}, (), Limits(concurrency=1, max_tasks=1, max_time=FIRING_TIMEOUT)
    )
    listener.run()
    return listener.done > 0
