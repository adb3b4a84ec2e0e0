"""The order in which a worker serves its queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

#: weight of a queue, at most
MAX_WEIGHT = 1000


class QueueOrder:
    """Strict: the first queue is served first, always. With weights: each queue comes first in a share of the
    claims that is proportional to its weight; the others follow, so that no claim is in vain.

    The shares are even ("smooth weighted round-robin", nginx): with weights of 3 and 1, the first four claims
    serve a, a, b and a first.

    >>> order = QueueOrder({"a": 3, "b": 1})
    >>> [order.next()[0] for _ in range(4)]
    ['a', 'a', 'b', 'a']
    >>> QueueOrder(["b", "a"]).next()
    ['b', 'a']
    """

    def __init__(self, queues: Sequence[str] | Mapping[str, int]) -> None:
        #: in the order in which they were given
        self.queues = list(queues)
        self._weights = dict(queues) if isinstance(queues, Mapping) else {}
        self._total = sum(self._weights.values())
        #: how far each queue is behind its share
        self._behind = dict.fromkeys(self._weights, 0)

    def next(self) -> list[str]:
        """The queues in the order of the next claim. Not for several threads at once."""
        if not self._weights:
            return self.queues
        for queue, weight in self._weights.items():
            self._behind[queue] += weight
        order = sorted(self.queues, key=self._behind.__getitem__, reverse=True)
        self._behind[order[0]] -= self._total
        return order
