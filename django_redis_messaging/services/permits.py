"""What a process knows of the permits of a semaphore that it holds, and what there is to see of one."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import SemaphoreError
from .owners import Owned
from .renewing import AwaitingRenewal, Renewal


@dataclass(frozen=True, kw_only=True, slots=True)
class SemaphoreInfo:
    """What there is to see of a semaphore, at one moment."""

    limit: int
    """How many permits there are: the stored number, or the constructor's where none is stored."""
    held: int
    """How many of them are held; more than `limit` where that was lowered."""
    waiting: int
    """How many wait in the line."""


@dataclass(slots=True)
class Permit:
    """A permit that was granted."""

    token: str
    #: keeps its lease
    renewal: Renewal | AwaitingRenewal | None = None


class Permits(Owned):
    """Those of one thread, or task, the latest last."""

    __slots__ = ("_name", "_permits")

    def __init__(self, name: str) -> None:
        self._name = name
        self._permits: list[Permit] = []

    def push(self, permit: Permit) -> None:
        """One more."""
        self._permits.append(permit)

    def pop(self) -> str:
        """The token of the latest, which is renewed no more; SemaphoreError where there is none."""
        self._check()
        permit = self._permits.pop()
        if permit.renewal is not None:
            permit.renewal.abandon()
        return permit.token

    @property
    def tokens(self) -> list[str]:
        """Those of all; SemaphoreError where there are none."""
        self._check()
        return [permit.token for permit in self._permits]

    def end_renewal(self) -> None:
        """Renew none of them any more."""
        for permit in self._permits:
            if permit.renewal is not None:
                permit.renewal.abandon()

    def _check(self) -> None:
        if not self._permits:
            raise SemaphoreError(
                f"This thread or task holds no permit of the semaphore {self._name!r}: acquire one first, and"
                " release it in the thread or task that acquired it."
            )
