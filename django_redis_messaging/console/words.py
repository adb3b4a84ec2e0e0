"""The words for what the console shows: kinds of things."""

from __future__ import annotations

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from ..services.common.things import Thing

KINDS: dict[str, str | Promise] = {
    "task": _("task"),
    "job": _("job"),
    "queue": _("queue"),
    "worker": _("worker"),
    "periodic": _("periodic task"),
    "timer": _("timer"),
    "lock": _("lock"),
    "rwlock": _("read-write lock"),
    "semaphore": _("semaphore"),
    "latch": _("latch"),
    "permit": _("permit"),
    "rate": _("rate limit"),
    "chat": _("chat"),
    "mailbox": _("user"),
    "broadcast": _("broadcast channel"),
    "files": _("file channel"),
    "directory": _("directory"),
    "server": _("server"),
}


def kind_of(thing: Thing) -> str:
    """What kind of thing it is."""
    return str(KINDS[thing.kind])
