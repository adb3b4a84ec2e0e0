"""The pause after a failure: exponential, with jitter."""

from __future__ import annotations

import random

#: doublings after which the pause grows no more, whatever its limit: keeps the power in range
MAX_DOUBLINGS = 40


def backoff(failures: int, *, first: float = 0.2, longest: float = 10.0) -> float:
    """Seconds to wait after that many failures (1, 2 …): `first`, doubled each time, at most `longest`; then
    reduced by up to a half at random, so that clients that failed together don't retry together.

    >>> 0.4 <= backoff(3) <= 0.8
    True
    """
    pause = min(first * 2.0 ** min(failures - 1, MAX_DOUBLINGS), longest)
    return pause * random.uniform(0.5, 1)  # noqa: S311
