"""Claims whose replies were lost: the jobs that they have leased are run by nobody.

At the end of their leases they would come back as jobs that have lost their worker, and one with a single
attempt would be dead. So the worker releases them, by the token of the claim.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from time import monotonic

from ...core.operations import perform
from .engine import Engine

logger = logging.getLogger(__name__)

#: claims that are remembered, the latest ones
MAX_CLAIMS = 1000


class LostClaims:
    """The claims of one worker whose replies were lost.

    Their jobs are released before the next claim, and again after each third of a lease, until a lease has
    passed since Redis replied first: a request that was delayed on its way may be executed later.
    """

    def __init__(self, engine: Engine, using: str, queues: Sequence[str], lease: float) -> None:
        self._engine = engine
        self._using = using
        self._queues = list(queues)
        self._lease = lease
        #: token → when it is forgotten: monotonic; infinite until Redis has replied
        self._tokens: dict[str, float] = {}
        #: monotonic
        self._next_release = 0.0

    def __bool__(self) -> bool:
        return bool(self._tokens)

    def add(self, token: str) -> None:
        """Remember a claim."""
        self._tokens[token] = math.inf
        self._next_release = 0.0
        if len(self._tokens) > MAX_CLAIMS:
            del self._tokens[next(iter(self._tokens))]

    def release(self) -> None:
        """Release the jobs of these claims, if that is due; raises MessagingError."""
        if monotonic() < self._next_release:
            return
        tokens = list(self._tokens)
        # before the request: add() resets it for a claim that is lost meanwhile, in another lane
        self._next_release = monotonic() + self._lease / 3
        try:
            released = perform(self._using, self._engine.return_claims(self._queues, tokens))
        except BaseException:
            self._next_release = 0.0
            raise
        now = monotonic()
        for token in tokens:
            ends = min(self._tokens.get(token, now), now + self._lease)
            if ends > now:
                self._tokens[token] = ends
            else:
                self._tokens.pop(token, None)
        if released:
            logger.warning(
                "The reply to a claim was lost; jobs that it had leased were released: %d.", released
            )
