"""The keys of messaging_check."""

from __future__ import annotations

from .names import tag

#: so many that each primary of a Cluster of usual size has some
PROBES = 16


def probe(prefix: str, number: int) -> str:
    """STRING that says nothing: that it could be written does. Expires within a minute."""
    return tag(prefix, "probe", str(number))
