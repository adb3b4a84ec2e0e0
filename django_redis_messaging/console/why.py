"""Why something waits, as pages show it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.utils.text import capfirst

from ..services.common.things import Thing
from ..services.explaining import explain
from .base import ConsolePage
from .words import kind_of


def explained(page: ConsolePage, thing: Thing) -> dict[str, Any]:
    """What the template _why.html shows: the explanation, and its causes with links to their things. At most
    9 round trips."""
    found = explain(thing)
    # a thing before those whose text begins like its own
    things = sorted({cause.thing for cause in found.causes}, key=str, reverse=True)
    causes = [
        (readable(cause.text, things), "" if cause.thing == thing else page.url_of(cause.thing), cause.ends)
        for cause in found.causes
    ]
    return {"explanation": found, "causes": causes}


def readable(text: str, things: Sequence[Thing]) -> str:
    """A sentence that names things in words, not as one types them in a command.

    >>> things = [Thing("lock", "a b"), Thing("task", "7", "default")]
    >>> readable("lock:a%20b is held by task:default/7", things)
    'Lock a b is held by task 7'
    >>> readable("ann has not read 2 messages", things)
    'ann has not read 2 messages'
    """
    for thing in things:
        words = f"{kind_of(thing)} {thing.label}"
        if text.startswith(str(thing)):
            text = capfirst(words) + text.removeprefix(str(thing))
        text = text.replace(str(thing), words)
    return text
