"""Ends the live streams of a process that is told to stop: servers wait for them, some without a limit."""

from __future__ import annotations

import signal
import threading
from functools import cache, partial
from types import FrameType
from typing import Any

from ...services.live.hub import open_hubs

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@cache
def watch_signals() -> None:
    """End all streams before the server handles a signal to stop. A server that handles none doesn't wait."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in _SIGNALS:
        handle = signal.getsignal(number)
        if callable(handle):
            signal.signal(number, partial(_end_streams, handle))


def _end_streams(handle: Any, number: int, frame: FrameType | None) -> None:
    for loop, hub in open_hubs():
        loop.call_soon_threadsafe(hub.end_streams)
    handle(number, frame)
