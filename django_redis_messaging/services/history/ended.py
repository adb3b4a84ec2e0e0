"""What has ended in this process since a recorder counted it: attempts of jobs, and operations."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress

from ...core import after_fork
from ...core.operations import observe, unobserve
from ..jobs.engine import Outcome

#: outcomes of attempts that count; the others are released uncharged
COUNTED = frozenset(
    one.value for one in (Outcome.DONE, Outcome.RETRY, Outcome.DEAD, Outcome.CANCELLED, Outcome.LOST)
)
#: outcomes of attempts and operations that have not failed
SUCCESSFUL = frozenset((Outcome.DONE.value, Outcome.CANCELLED.value, "ok"))
#: queue, task, outcome, ms from the due time to the claim, seconds of the run. Of an operation: no queue, its
#: name, "ok" or the class of its error, no wait
Run = tuple[str, str, str, int | None, float]

#: operations that have ended; of very many, the latest
_operations: deque[Run] = deque(maxlen=100_000)
_lock = threading.Lock()
#: how many recorders of this process are running: together they count each operation once
_recorders = 0


def note_operations() -> None:
    """Note the operations of this process, for another recorder."""
    global _recorders
    with _lock:
        _recorders += 1
        if _recorders == 1:
            observe(_note)


def end_noting() -> None:
    """Note them no longer for one of these recorders."""
    global _recorders
    with _lock:
        if _recorders == 1:
            unobserve(_note)
        _recorders = max(_recorders - 1, 0)  # a forked process has none


def _note(operation: str, seconds: float, outcome: str) -> None:
    """Note an operation of a class. Those of the lease engine, such as claims and waits, are the worker's
    own: what they achieve is in the history of queues."""
    if "." in operation and "Engine." not in operation:
        _operations.append(("", operation, outcome, None, seconds))


def _forget() -> None:
    """After a fork: the recorders are those of the parent."""
    global _lock, _recorders
    _lock = threading.Lock()
    _operations.clear()
    if _recorders:
        _recorders = 0
        unobserve(_note)


after_fork(_forget)


def take_operations() -> list[Run]:
    """Remove the operations that have ended."""
    taken: list[Run] = []
    with suppress(IndexError):  # another recorder takes some, too
        for _ in range(len(_operations)):
            taken.append(_operations.popleft())
    return taken
