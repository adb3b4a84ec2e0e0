"""Round trips to Redis."""

from __future__ import annotations

from ..budgets import Call, Profile


def round_trips(call: Call) -> int:
    """How often a call, or a thread that it starts, sends something over a socket."""
    profile = Profile()
    profile.run(call)
    return profile.cost(in_threads=False).round_trips
