"""Options that can be changed while the site runs.

Each process keeps them in memory, and reloads them after the broadcast of a change.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.conf import settings

from django_redis_messaging import Broadcast, Lock

CHANNEL = "options"
DEFAULTS: dict[str, Any] = {"discount": 0, "open": True}
_loaded: dict[str, Any] = {}


def get(name: str) -> Any:
    """The value of an option, as loaded last by this process."""
    if not _loaded:
        load()
    return _loaded[name]


def change(name: str, value: Any) -> None:
    """Change an option in all processes."""
    with Lock("shop options"):  # or one of two changes at once would be lost
        changed = _file().with_suffix(".changed")
        changed.write_text(json.dumps({**_stored(), name: value}), encoding="utf-8")
        changed.replace(_file())
    load()
    Broadcast(CHANNEL).publish(name)


def load() -> None:
    """Load all options from the file."""
    _loaded.update(DEFAULTS | _stored())


def _file() -> Path:
    return Path(settings.DATA_DIR) / "options.json"


def _stored() -> dict[str, Any]:
    return dict(json.loads(_file().read_text(encoding="utf-8"))) if _file().exists() else {}
