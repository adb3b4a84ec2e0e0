"""Why something waits, as pages show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.utils.text import capfirst
from django.utils.translation import gettext as _

from ..core.encoding import printable
from ..services.common.things import Thing
from ..services.explaining import Cause, explain
from ..web import identity as identities
from .base import ConsolePage
from .words import kind_of

#: kinds of things whose name says little without that in which it is unique
IN_WHERE = {"rate", "timer", "job"}
#: kinds of things that don't wait themselves
NOT_WAITING = {"worker", "chat", "mailbox"}


def explained(page: ConsolePage, thing: Thing) -> dict[str, Any]:
    """What the template _why.html shows: the explanation, and its causes with links to their things. At most
    9 round trips."""
    found = explain(thing)
    members = [str(cause.params["member"]) for cause in found.causes if "member" in cause.params]
    labels = identities.current().labels(members)
    # a thing before those whose text begins like its own
    things = sorted({cause.thing for cause in found.causes}, key=str, reverse=True)
    causes = [
        (
            sentence(cause, things, labels),
            "" if cause.thing == thing else page.url_of(cause.thing),
            cause.ends,
        )
        for cause in found.causes
    ]
    title = _("Explanation") if thing.kind in NOT_WAITING else _("Why it waits")
    return {"explanation": found, "why": title, "causes": causes}


def sentence(cause: Cause, things: Sequence[Thing], labels: Mapping[str, str]) -> str:
    """The text of a cause, with a capital letter; or with the name of a user whose id it begins with."""
    text, member = readable(cause.text, things), str(cause.params.get("member", ""))
    if member and text.startswith(member):
        return printable(labels.get(member) or member) + text.removeprefix(member)
    return capfirst(text)


def readable(text: str, things: Sequence[Thing]) -> str:
    """A text that names things in words, not as one types them in a command.

    >>> things = [Thing("lock", "a b"), Thing("task", "7", "default")]
    >>> readable("lock:a%20b is held by task:default/7", things)
    'lock a b is held by task 7'
    """
    for thing in things:
        name = f"{printable(thing.where)}/{thing.label}" if thing.kind in IN_WHERE else thing.label
        text = text.replace(str(thing), f"{kind_of(thing)} {name}")
    return text
