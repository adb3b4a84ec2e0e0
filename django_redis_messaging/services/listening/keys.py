"""The keys of listeners to keyspace events."""

from __future__ import annotations

from ...core.keys import FORMAT, encoded


def dispatch_key(prefix: str, node: str) -> str:
    """The key of a Lock: the listener that dispatches the keyspace events of a primary holds it."""
    return f"{prefix}:{FORMAT}:{{listener:nodes}}:{encoded(node)}"
