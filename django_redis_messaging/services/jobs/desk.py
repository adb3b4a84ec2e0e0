"""The desk of a worker: lanes that settle and claim at the same time share one round trip.

One lane at a time talks to Redis. Those that come meanwhile are served together, by the first of them, as
soon as it is back ("flat combining", Hendler, Incze, Shavit and Tzafrir 2010). A lane that comes alone is
served at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from .engine import Claimed, Held, Verdict

#: makes the round trip: verdicts, jobs wanted
Exchange = Callable[[Sequence[Verdict], int], Claimed]


class Asking:
    """What a lane came for, and what it got."""

    __slots__ = ("_called", "due_in", "error", "held", "leads", "ours", "verdict", "wants")

    def __init__(self, verdict: Verdict | None, wants: bool) -> None:
        self.verdict = verdict
        self.wants = wants
        #: whether the lease of the job it settled was still its own
        self.ours = True
        self.held: Held | None = None
        #: seconds until something is due
        self.due_in: float | None = None
        self.error: Exception | None = None
        #: whether it is its turn to serve those who wait, itself among them
        self.leads = False
        self._called = threading.Lock()
        self._called.acquire()

    def wait(self) -> None:
        """Wait to be called."""
        self._called.acquire()

    def call(self) -> None:
        """Let it go on."""
        self._called.release()


class Desk:
    """Where the lanes of a worker settle and claim."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._guard = threading.Lock()
        self._serving = False
        self._waiting: list[Asking] = []

    def ask(self, verdict: Verdict | None, wants: bool) -> Asking:
        """Settle a job and claim another; raises what the round trip raises."""
        asking = Asking(verdict, wants)
        with self._guard:
            self._waiting.append(asking)
            asking.leads, self._serving = not self._serving, True
        if not asking.leads:
            asking.wait()
        if asking.leads:
            self._serve(asking)
        if asking.error is not None:
            raise asking.error
        return asking

    def _serve(self, leader: Asking) -> None:
        with self._guard:
            together, self._waiting = self._waiting, []
        try:
            self._answer(together)
        except Exception as error:
            for one in together:
                one.error = error
        finally:
            self._hand_over()
            for one in together:
                if one is not leader:
                    one.leads = False
                    one.call()

    def _answer(self, together: Sequence[Asking]) -> None:
        settling = [one for one in together if one.verdict is not None]
        claiming = [one for one in together if one.wants]
        claimed = self._exchange([one.verdict for one in settling if one.verdict], len(claiming))
        for one, ours in zip(settling, claimed.settled, strict=True):
            one.ours = ours
        for one, held in zip(claiming, claimed.jobs, strict=False):
            one.held = held
        for one in together:
            one.due_in = None if claimed.due_in is None else claimed.due_in / 1000

    def _hand_over(self) -> None:
        with self._guard:
            self._serving = bool(self._waiting)
            if self._waiting:
                self._waiting[0].leads = True
                self._waiting[0].call()
