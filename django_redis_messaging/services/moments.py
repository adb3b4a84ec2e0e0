"""Moments of the server's clock."""

from __future__ import annotations

from datetime import UTC, datetime


def to_datetime(ms: float | bytes) -> datetime:
    """Milliseconds of the server's clock as an aware datetime.

    >>> to_datetime(1_790_000_000_000.001).isoformat()
    '2026-09-21T14:13:20.000001+00:00'
    """
    return datetime.fromtimestamp(float(ms) / 1000, UTC)
