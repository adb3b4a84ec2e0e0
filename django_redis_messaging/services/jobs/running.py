"""A job under way, as the worker that runs it knows it."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from ...errors import TaskTimeout
from .engine import Held


@dataclass(eq=False)
class Running:
    """A job under way, as its worker knows it."""

    held: Held
    #: runs a coroutine on the worker's event loop and waits for what it returns
    awaits: Callable[[Coroutine[Any, Any, Any]], Any]
    thread: int = field(default_factory=threading.get_ident)
    began: float = field(default_factory=monotonic)
    #: seconds it may take
    timeout: float | None = None
    lost: bool = False
    #: whether the worker gave it back, since it had to end
    given_back: bool = False
    #: guards against a timeout that comes when the call is over
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _calling: bool = False
    _timed_out: bool = False

    @property
    def overdue(self) -> float:
        """Seconds since its time was up; negative before, and where it may take any time."""
        return -1.0 if self.timeout is None else monotonic() - self.began - self.timeout

    def call(self, function: Callable[[], Any]) -> Any:
        """Call it; raises TaskTimeout in it when its time is up."""
        with self._guard:
            self._calling = True
        try:
            return function()
        finally:
            with self._guard:
                self._calling = False

    def interrupt(self) -> None:
        """Raise TaskTimeout in the thread that calls, once. What waits inside the system notices when it
        comes back from there."""
        with self._guard:
            if self._calling and not self._timed_out:
                self._timed_out = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self.thread), ctypes.py_object(TaskTimeout)
                )
