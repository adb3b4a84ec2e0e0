"""Threads that work until they are stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable


def start_thread(run: Callable[[threading.Event], None], name: str) -> Callable[[], None]:
    """Start a thread that runs until the event is set; returns a function that sets it and waits."""
    stop = threading.Event()
    thread = threading.Thread(target=run, args=(stop,), name=name, daemon=True)
    thread.start()

    def stop_thread() -> None:
        stop.set()
        thread.join()

    return stop_thread
