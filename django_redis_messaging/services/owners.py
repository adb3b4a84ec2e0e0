"""State that belongs to a thread, or to a task of an event loop: what it holds of a lock or a semaphore."""

from __future__ import annotations

import asyncio
import functools
import os
import socket
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

#: maximum number of characters of a host name in a token
MAX_HOST_LENGTH = 40


class Owned(ABC):
    """What one thread or task holds. Its leases are not renewed any more after the thread or task has
    ended, or when this object is destroyed, since nothing could release them then."""

    __slots__ = ("__weakref__",)

    @abstractmethod
    def end_renewal(self) -> None:
        """Stop renewing its leases."""

    def __del__(self) -> None:
        self.end_renewal()


def new_token() -> str:
    """A unique token for one acquire: host, process id and a random part, to show who holds a lock or a
    permit."""
    return f"{_host()}:{os.getpid()}:{os.urandom(8).hex()}"


@functools.cache
def _host() -> str:
    return socket.gethostname()[:MAX_HOST_LENGTH]


def current_owner() -> int:
    """A number that identifies the running task, or the thread if no task is running, while it exists."""
    task = _current_task()
    return threading.get_ident() if task is None else id(task)


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop
        return None


#: number of forks by which this process descends from the first one
_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)

O = TypeVar("O", bound=Owned)  # noqa: E741


class SharedOwner(Generic[O]):
    """One state for all threads and tasks of a process. `make_empty`: see Owners."""

    def __init__(self, make_empty: Callable[[], O]) -> None:
        self._make_empty = make_empty
        self._forks, self._state = _forks, make_empty()

    @property
    def current(self) -> O:
        """The state. A forked child holds nothing of what its parent held."""
        if self._forks != _forks:
            self._forks, self._state = _forks, self._make_empty()
        return self._state


class Owners(threading.local, Generic[O]):
    """The states of each thread and of each of its tasks. `make_empty` makes the state of one that holds
    nothing."""

    def __init__(self, make_empty: Callable[[], O]) -> None:
        self._make_empty = make_empty
        self._reset()

    def _reset(self) -> None:
        self._forks = _forks
        self._thread = self._make_empty()
        self._tasks: weakref.WeakKeyDictionary[asyncio.Task[Any], O] = weakref.WeakKeyDictionary()

    @property
    def current(self) -> O:
        """The state of the running task, or of the thread if no task is running."""
        if self._forks != _forks:
            self._reset()  # a forked child holds nothing of what its parent held
        task = _current_task()
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
