"""Whose something is: what each thread, or task of an event loop, has of it."""

from __future__ import annotations

import asyncio
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar


class Owned(ABC):
    """What one thread, or task, has; nobody renews it when that has ended, or can't release it any more."""

    __slots__ = ("__weakref__",)

    @abstractmethod
    def end_renewal(self) -> None:
        """Renew no lease of it any more."""

    def __del__(self) -> None:
        self.end_renewal()


O = TypeVar("O", bound=Owned)  # noqa: E741


class Owners(threading.local, Generic[O]):
    """Of a thread: what itself has, and what its tasks have. `nothing` makes what one has who has nothing."""

    def __init__(self, nothing: Callable[[], O]) -> None:
        self._nothing = nothing
        self._thread = nothing()
        self._tasks: weakref.WeakKeyDictionary[asyncio.Task[Any], O] = weakref.WeakKeyDictionary()

    @property
    def now(self) -> O:
        """Of the task that runs, or of the thread where none does."""
        try:
            task = asyncio.current_task()
        except RuntimeError:  # no event loop
            return self._thread
        if task is None:
            return self._thread
        own = self._tasks.get(task)
        if own is None:
            own = self._tasks[task] = self._nothing()
            ends = weakref.ref(own)
            task.add_done_callback(lambda _: _end_renewal(ends()))
        return own


def _end_renewal(own: Owned | None) -> None:
    if own is not None:
        own.end_renewal()
