"""Ports for servers on this machine."""

from __future__ import annotations

import random
import socket

#: below those that the system gives to outgoing connections, which could take one before its server starts
RANGE = (10_000, 32_000)
_chosen: set[int] = set()
_random = random.SystemRandom()


def free_port() -> int:
    """A port on which nothing listens; each one is returned only once."""
    while True:
        port = _random.randrange(*RANGE)
        if port not in _chosen and _is_free(port):
            _chosen.add(port)
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
