"""Why something waits, as pages show it."""

from __future__ import annotations

from typing import Any

from ..services.common.things import Thing
from ..services.explaining import explain
from .base import ConsolePage


def explained(page: ConsolePage, thing: Thing) -> dict[str, Any]:
    """What the template _why.html shows: the explanation, and its causes with links to their things. At most
    10 round trips."""
    found = explain(thing)
    causes = [
        (cause.text, "" if cause.thing == thing else page.url_of(cause.thing), cause.ends)
        for cause in found.causes
    ]
    return {"explanation": found, "causes": causes}
