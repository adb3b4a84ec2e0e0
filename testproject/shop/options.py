"""Options that are changed while the site runs: each process holds them in memory, and loads them again
when it hears of a change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.conf import settings

from django_redis_messaging import Broadcast, Lock

CHANNEL = "options"
DEFAULTS: dict[str, Any] = {"discount": 0, "open": True}
_held: dict[str, Any] = {}


def get(name: str) -> Any:
    """An option, as it was last heard of."""
    if not _held:
        load()
    return _held[name]


def change(name: str, value: Any) -> None:
    """Change an option, for all processes."""
    with Lock("shop options"):  # two changes at once are two changes
        changed = _file().with_suffix(".changed")
        changed.write_text(json.dumps({**_stored(), name: value}), encoding="utf-8")
        changed.replace(_file())
    load()
    Broadcast(CHANNEL).publish(name)


def load() -> None:
    """Read all options anew."""
    _held.update(DEFAULTS | _stored())


def _file() -> Path:
    return Path(settings.DATA_DIR) / "options.json"


def _stored() -> dict[str, Any]:
    return dict(json.loads(_file().read_text(encoding="utf-8"))) if _file().exists() else {}
