"""The permits of a semaphore that this process holds, and the public state of a semaphore."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import SemaphoreError
from ..owners import Owned
from ..renewing import AsyncRenewal, Renewal


@dataclass(frozen=True, kw_only=True, slots=True)
class SemaphoreInfo:
    """The state of a semaphore at one moment."""

    limit: int
    """The number of permits: the stored limit, or the constructor's if none is stored."""
    held: int
    """The number of permits held; greater than `limit` after that was lowered."""
    waiting: int
    """The number of waiting clients."""


@dataclass(slots=True)
class Permit:
    """A granted permit."""

    token: str
    #: renews its lease
    renewal: Renewal | AsyncRenewal | None = None


class Permits(Owned):
    """The permits of one thread or task, the latest one last."""

    __slots__ = ("_name", "_permits")

    def __init__(self, name: str) -> None:
        self._name = name
        self._permits: list[Permit] = []

    def push(self, permit: Permit) -> None:
        """Add a permit."""
        self._permits.append(permit)

    def pop(self) -> str:
        """Remove the latest permit, stop its renewal, and return its token; raises SemaphoreError if none is
        held."""
        self._check()
        permit = self._permits.pop()
        if permit.renewal is not None:
            permit.renewal.abandon()
        return permit.token

    @property
    def tokens(self) -> list[str]:
        """The tokens of all permits; raises SemaphoreError if none is held."""
        self._check()
        return [permit.token for permit in self._permits]

    def end_renewal(self) -> None:
        """Stop renewing all permits."""
        for permit in self._permits:
            if permit.renewal is not None:
                permit.renewal.abandon()

    def _check(self) -> None:
        if not self._permits:
            raise SemaphoreError(
                f"This thread or task holds no permit of the semaphore {self._name!r}: acquire one first, and"
                " release it in the thread or task that acquired it."
            )
