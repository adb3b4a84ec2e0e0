"""The permits of a semaphore that this process holds."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import SemaphoreError
from ..lease_renewer import RenewedLease
from ..owners import Owned


@dataclass(slots=True)
class Permit:
    """A permit that is being acquired, or was granted."""

    token: str
    #: when the latest request was sent, so that the lease lasts from then on at least; monotonic
    sent_at: float = 0.0
    #: renews its lease
    renewal: RenewedLease | None = None


class Permits(Owned):
    """The permits of one thread or task, the latest one last."""

    __slots__ = ("_name", "_permits")

    def __init__(self, name: str) -> None:
        self._name = name
        self._permits: list[Permit] = []

    def push(self, permit: Permit) -> None:
        """Add a permit, and start its renewal."""
        self._permits.append(permit)
        if permit.renewal is not None:
            permit.renewal.start(permit.sent_at)

    def pop(self) -> str:
        """Remove the latest permit, stop its renewal, and return its token; raises SemaphoreError if none is
        held."""
        self._check()
        permit = self._permits.pop()
        if permit.renewal is not None:
            permit.renewal.end()
        return permit.token

    def forget(self, token: str) -> None:
        """Remove the latest permit, if it has this token."""
        if self._permits and self._permits[-1].token == token:
            self.pop()

    @property
    def tokens(self) -> list[str]:
        """The tokens of all permits; raises SemaphoreError if none is held."""
        self._check()
        return [permit.token for permit in self._permits]

    def end_renewal(self) -> None:
        """Stop renewing all permits."""
        for permit in self._permits:
            if permit.renewal is not None:
                permit.renewal.end()

    def _check(self) -> None:
        if not self._permits:
            raise SemaphoreError(
                f"This thread or task holds no permit of the semaphore {self._name!r}: acquire one first, and"
                " release it in the thread or task that acquired it."
            )
