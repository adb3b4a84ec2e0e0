"""Round trips to Redis."""

from __future__ import annotations

import socket
import sys
from itertools import groupby
from types import FrameType
from typing import Any

from ..budgets import SENDING, Call


def round_trips(call: Call) -> int:
    """How often a call sends something over a socket and then receives a reply. What it sends before that, in
    several pieces or to several nodes of a Cluster, is one round trip."""
    sends: list[bool] = []

    def record(frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_call" and isinstance(getattr(arg, "__self__", None), socket.socket):
            if arg.__name__ in SENDING:
                sends.append(True)
            elif arg.__name__.startswith("recv"):
                sends.append(False)

    sys.setprofile(record)
    try:
        call()
    finally:
        sys.setprofile(None)
    return sum(is_send for is_send, _ in groupby(sends))
