"""State that belongs to a thread, or to a task of an event loop: what it holds of a lock or a semaphore."""

from __future__ import annotations

import asyncio
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar


class Owned(ABC):
    """What one thread or task holds. Its leases are not renewed any more after the thread or task has ended,
    or when this object is destroyed, since nothing could release them then."""

    __slots__ = ("__weakref__",)

    @abstractmethod
    def end_renewal(self) -> None:
        """Stop renewing its leases."""

    def __del__(self) -> None:
        self.end_renewal()


O = TypeVar("O", bound=Owned)  # noqa: E741


class Owners(threading.local, Generic[O]):
    """The states of each thread and of each of its tasks. `make_empty` makes the state of one that holds
    nothing."""

    def __init__(self, make_empty: Callable[[], O]) -> None:
        self._make_empty = make_empty
        self._thread = make_empty()
        self._tasks: weakref.WeakKeyDictionary[asyncio.Task[Any], O] = weakref.WeakKeyDictionary()

    @property
    def current(self) -> O:
        """The state of the running task, or of the thread if no task is running."""
        try:
            task = asyncio.current_task()
        except RuntimeError:  # no event loop
            return self._thread
        if task is None:
            return self._thread
        own = self._tasks.get(task)
        if own is None:
            own = self._tasks[task] = self._make_empty()
            reference = weakref.ref(own)
            task.add_done_callback(lambda _: _end_renewal(reference()))
        return own


def _end_renewal(own: Owned | None) -> None:
    if own is not None:
        own.end_renewal()
