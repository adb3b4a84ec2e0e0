"""Traffic during a fault: callers that repeat what failed, readers, and what they acknowledged and saw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import pairwise
from threading import Event
from time import monotonic
from typing import TypeVar

from django_redis_messaging import OutcomeUnknown, Unavailable

T = TypeVar("T")
#: seconds between two operations of a caller
PACE = 0.01
#: the errors that a fault may cause
EXPECTED = (Unavailable, OutcomeUnknown)


class Load:
    """Operations of one service on several resources. `check` counts `lost`, `doubled` and `repeated`."""

    #: what the operations create, in the plural
    things = ""

    def __init__(self, names: list[str], using: str | None = None) -> None:
        self.names = names
        self.using = using
        #: resource → when its operations were acknowledged (monotonic)
        self.acknowledged: dict[str, list[float]] = {name: [] for name in names}
        #: class of an error → how often a caller got it
        self.errors: Counter[str] = Counter()
        #: broken promises
        self.violations: list[str] = []
        #: acknowledged operations without effect; operations with two effects; handlers called again
        self.lost = self.doubled = self.repeated = 0
        #: how often readers or holders were told about a loss
        self.reported = 0

    @property
    def producers(self) -> list[Callable[[Event], None]]:
        """Functions that run in threads until their event is set."""
        raise NotImplementedError

    @property
    def coroutines(self) -> list[Callable[[Event], Awaitable[None]]]:
        """Producers that run in an event loop."""
        return []

    @property
    def consumers(self) -> list[Callable[[Event], None]]:
        """Functions that run in threads until the producers have ended and everything is processed."""
        return []

    @property
    def is_drained(self) -> bool:
        """Whether readers and workers have processed everything."""
        return True

    @property
    def total(self) -> int:
        """The number of acknowledged operations."""
        return sum(map(len, self.acknowledged.values()))

    def check(self) -> None:
        """Compare what was acknowledged with what survived."""

    def outage(self, since: float) -> float:
        """The longest time that a resource was without an acknowledged operation after this moment, s."""
        return max(
            max((b - a for a, b in pairwise([since, *(at for at in times if at > since)])), default=0.0)
            for times in self.acknowledged.values()
        )

    def insist(self, name: str, operation: Callable[[], T]) -> T:
        """Repeat an operation on a resource until it is acknowledged."""
        while True:
            try:
                result = operation()
            except EXPECTED as error:
                self.errors[type(error).__name__] += 1
            else:
                self.acknowledged[name].append(monotonic())
                return result

    async def ainsist(self, name: str, operation: Callable[[], Awaitable[T]]) -> T:
        """An async version of `insist`."""
        while True:
            try:
                result = await operation()
            except EXPECTED as error:
                self.errors[type(error).__name__] += 1
            else:
                self.acknowledged[name].append(monotonic())
                return result

    def attempt(self, operation: Callable[[], T], default: T) -> T:
        """The result of an operation, or `default` if it was not acknowledged."""
        try:
            return operation()
        except EXPECTED as error:
            self.errors[type(error).__name__] += 1
            return default
