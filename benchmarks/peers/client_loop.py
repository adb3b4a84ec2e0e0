"""An event loop in a thread, for queues whose clients are async."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any


class ClientLoop:
    """Runs coroutines, within the context of a client that stays open."""

    def __init__(self, client: AbstractAsyncContextManager[Any] | None = None) -> None:
        self._client = client or nullcontext()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True).start()
        if not self._ready.wait(10):
            raise RuntimeError("The client has not connected within 10 s.")

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine to its end."""
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    async def _serve(self) -> None:
        async with self._client:
            self._ready.set()
            await asyncio.Event().wait()
