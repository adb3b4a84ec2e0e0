"""Combined claims: lanes of a worker that settle and claim at the same time share one round trip.

One lane at a time talks to Redis. Lanes that arrive meanwhile wait, and the first of them serves them all as
soon as that lane is back ("flat combining", Hendler, Incze, Shavit and Tzafrir 2010). A lane that arrives
alone is served at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from .leases import Claimed, LeasedJob, Settlement

#: makes the round trip: settlements, number of jobs to claim
Exchange = Callable[[Sequence[Settlement], int], Claimed]


class Claim:
    """What one lane settles and claims, and the result."""

    __slots__ = ("_served", "due_in", "error", "is_leader", "job", "settled", "settlement", "wants_job")

    def __init__(self, settlement: Settlement | None, wants_job: bool) -> None:
        self.settlement = settlement
        self.wants_job = wants_job
        #: whether the settlement was applied; False where its lease was stale
        self.settled = True
        self.job: LeasedJob | None = None
        #: seconds until something is due
        self.due_in: float | None = None
        self.error: BaseException | None = None
        #: whether this lane serves all that wait, itself included
        self.is_leader = False
        self._served = threading.Lock()
        self._served.acquire()

    def wait(self) -> None:
        """Wait until another lane has served this one, or made it the leader."""
        self._served.acquire()

    def wake(self) -> None:
        """End the wait."""
        self._served.release()


class Combiner:
    """Combines the claims of the lanes of one worker."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._guard = threading.Lock()
        self._has_leader = False
        self._waiting: list[Claim] = []

    def claim(self, settlement: Settlement | None, wants_job: bool) -> Claim:
        """Settle a job and claim another; raises what the round trip raises."""
        claim = Claim(settlement, wants_job)
        with self._guard:
            self._waiting.append(claim)
            claim.is_leader, self._has_leader = not self._has_leader, True
        if not claim.is_leader:
            claim.wait()
        if claim.is_leader:
            self._serve(claim)
        if claim.error is not None:
            raise claim.error
        return claim

    def _serve(self, leader: Claim) -> None:
        with self._guard:
            claims, self._waiting = self._waiting, []
        try:
            self._share(claims)
        except BaseException as error:  # raised in the lane of each claim
            for one in claims:
                one.error = error
        finally:
            self._choose_leader()
            for one in claims:
                if one is not leader:
                    one.is_leader = False
                    one.wake()

    def _share(self, claims: Sequence[Claim]) -> None:
        """Make the round trip, and give each claim its part of the reply."""
        settling = [one for one in claims if one.settlement is not None]
        claiming = [one for one in claims if one.wants_job]
        reply = self._exchange([one.settlement for one in settling if one.settlement], len(claiming))
        for one, settled in zip(settling, reply.settled, strict=True):
            one.settled = settled
        for one, job in zip(claiming, reply.jobs, strict=False):
            one.job = job
        for one in claims:
            one.due_in = reply.due_in

    def _choose_leader(self) -> None:
        with self._guard:
            self._has_leader = bool(self._waiting)
            if self._waiting:
                self._waiting[0].is_leader = True
                self._waiting[0].wake()
