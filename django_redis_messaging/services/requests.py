"""Request ids: what lets a repeat be told from a second request."""

from __future__ import annotations

import os

from .. import conf
from ..core.keys import name


def request(request_id: str | None) -> str:
    """The caller's request id, checked; a new one where there is none, for our own repeats."""
    return os.urandom(8).hex() if request_id is None else name(request_id, "request_id")


def settled(reply: int | None) -> bool | None:
    """What a script that `settles` replied: whether it moved the state; None where that is not known."""
    return None if reply is None else bool(reply)


def window() -> int:
    """How long request ids are remembered, in ms."""
    return conf.current().REQUEST_WINDOW * 1000
