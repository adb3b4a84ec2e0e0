"""The event loop that a worker's coroutine functions share."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine
from typing import Any

from ...core import clients

logger = logging.getLogger(__name__)

#: seconds that coroutines get to be cancelled, when a worker ends
CLOSING = 5.0


class Loop:
    """One event loop, in a thread that begins when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._serving: tuple[asyncio.AbstractEventLoop, threading.Thread] | None = None

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run it there; what it returns."""
        with self._lock:
            if self._serving is None:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(target=_serve, args=(loop,), name="event loop", daemon=True)
                thread.start()
                self._serving = loop, thread
            loop, _ = self._serving
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    def close(self) -> None:
        """End it, and what still runs there."""
        if self._serving is None:
            return
        loop, thread = self._serving
        try:
            asyncio.run_coroutine_threadsafe(_end(loop), loop).result(CLOSING)
        except TimeoutError:
            logger.warning("A task does not let itself be cancelled: it is left behind.")
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()


async def _end(loop: asyncio.AbstractEventLoop) -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for one in others:
        one.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await clients.aclose()
    await loop.shutdown_asyncgens()
