"""A child process of a worker: an executor that gets its jobs from the supervisor, and what they exchange.

Messages are tuples of plain values, by marshal: both ends are of one version of Python. Beside them, the two
share memory, in which the child notes what each job does. A note costs no message, and outlives the child.
"""

from __future__ import annotations

import faulthandler
import logging
import marshal
import mmap
import os
import socket
import struct
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from ... import conf
from ...core.outcome import deadline
from ...errors import TaskCancelled, TaskTimeout
from ..history.recording import LAST_DEADLINE, Recorder
from .engine import Lease, LeasedJob, State
from .executor import GOES_ON, Executor, Note, Report, Reporter

logger = logging.getLogger(__name__)

#: jobs that a child has at a time, at most
SLOTS = 2**16
#: the note of a job that has not started; the others are those of the executor
WAITS = 0.0
#: the size of a message: bytes
_SIZE = struct.Struct("<I")


class Channel:
    """Messages between a child and its supervisor, over a socket."""

    def __init__(self, own: socket.socket) -> None:
        self._socket = own
        self._file = own.makefile("rb", buffering=2**16)
        self._lock = threading.Lock()
        #: bytes that the socket has not taken yet
        self._unsent: deque[memoryview] = deque()

    def send(self, *message: Any) -> None:
        """Send a message. If the other end is gone, nothing happens: whoever reads will notice."""
        data = _framed(message)
        with self._lock, suppress(OSError):
            self._socket.sendall(data)

    def send_later(self, *message: Any) -> None:
        """The same, without waiting for the other end: a thread sends what does not fit in the socket now."""
        data = memoryview(_framed(message))
        with self._lock:
            if self._unsent:
                self._unsent.append(data)
                return
            data = data[self._send_now(data) :]
            if data:
                self._unsent.append(data)
                threading.Thread(target=self._send_rest, name="pipe to a child", daemon=True).start()

    def _send_now(self, data: memoryview) -> int:
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError:  # the other end is gone
            return len(data)

    def _send_rest(self) -> None:
        while True:
            with suppress(OSError):
                self._socket.sendall(self._unsent[0])
            with self._lock:
                self._unsent.popleft()
                if not self._unsent:
                    return

    def __iter__(self) -> Iterator[Any]:
        """The messages of the other end, until it is gone."""
        while (data := self._read()) is not None:
            yield marshal.loads(data)  # noqa: S302  # of a process that runs the same code

    def _read(self) -> bytes | None:
        try:
            size = self._file.read(_SIZE.size)
            length = _SIZE.unpack(size)[0] if len(size) == _SIZE.size else 0
            data = self._file.read(length)
        except ConnectionResetError:  # it has ended, and has not read everything
            return None
        # an incomplete message: it was killed while it sent this one
        return data if length and len(data) == length else None

    def stop_reading(self) -> None:
        """End the iteration after what has arrived."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        """Close the socket."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._file.close()
        self._socket.close()


def _framed(message: tuple[Any, ...]) -> bytes:
    data = marshal.dumps(message)
    return _SIZE.pack(len(data)) + data


class Notes:
    """What the jobs of a child do, in memory that it shares with the supervisor: a float for each job, at its
    slot. All processes have one monotonic clock."""

    def __init__(self, file: int) -> None:
        """`file` may be closed afterwards."""
        self._memory = mmap.mmap(file, SLOTS * 8)
        self.slots = memoryview(self._memory).cast("d")

    def close(self) -> None:
        """Give the memory back."""
        self.slots.release()
        self._memory.close()

    @staticmethod
    def new_file() -> int:
        """A file for the memory, which nothing outside the processes that have it open can find."""
        if hasattr(os, "memfd_create"):
            file = os.memfd_create("jobs")
        else:
            with tempfile.TemporaryFile() as temporary:
                file = os.dup(temporary.fileno())
        os.ftruncate(file, SLOTS * 8)
        return file


#: makes the executor of a child, from what it calls: see Executor
MakeExecutor = Callable[[Reporter, Callable[[], object], Note], Executor]


class ChildMain:
    """What a child process does: run jobs until the supervisor tells it to end."""

    def __init__(self, files: tuple[int, int], make_executor: MakeExecutor) -> None:
        channel, memory = files
        self._channel = Channel(socket.socket(fileno=channel))
        self._notes = Notes(memory)
        os.close(memory)
        #: number of a job → slot
        self._slots: dict[int, int] = {}
        faulthandler.enable(all_threads=False)  # shows where a task ends the process
        self._executor = make_executor(self._report, self._fail, self._note)
        self._recorder = Recorder(conf.alias())

    def run(self) -> None:
        """Handle the messages of the supervisor. If it has ended without a word, end at once."""
        self._channel.send("ready")
        self._recorder.start()
        for kind, *values in self._channel:
            if kind == "close":
                self._executor.close(*values)
                with deadline(LAST_DEADLINE):
                    self._recorder.close()
                return
            self._handle(kind, *values)
        os._exit(1)

    def _handle(self, kind: str, *values: Any) -> None:
        executor = self._executor
        if kind == "run":
            jobs, is_async = values
            executor.run([self._numbered(*one) for one in jobs], is_async=is_async)
        elif kind == "conclude":
            job, was_cancelled = values
            executor.conclude(*self._numbered(*job), _killed(was_cancelled))
        elif kind == "cancel":
            executor.cancel(*values)
        elif kind == "lost":
            executor.mark_lost(*values)
        elif kind == "give back":
            executor.give_back(running=values[0])
        elif kind == "announce":
            executor.announce(*values)

    def _numbered(
        self, number: int, slot: int, lease: Any, payload: bytes, state: Any
    ) -> tuple[int, LeasedJob]:
        self._slots[number] = slot
        return number, LeasedJob(Lease(*lease), payload, State(*state))

    def _note(self, number: int, moment: float) -> None:
        slot = self._slots.get(number)
        if slot is not None:  # it was not released meanwhile
            self._notes.slots[slot] = moment

    def _report(self, reports: list[Report]) -> None:
        for one in reports:
            if one.ended != GOES_ON:
                self._slots.pop(one.number, None)  # before the supervisor gives the slot to another job
        try:
            self._channel.send("reports", [tuple(one) for one in reports])
        except ValueError:  # of marshal: without them, the supervisor would wait forever
            logger.exception("The outcomes of jobs can't be sent; ending this process.")
            os._exit(1)

    def _fail(self) -> None:
        self._channel.send("failed")


def _killed(was_cancelled: bool) -> TaskTimeout | TaskCancelled:
    """How the attempt at a job ended whose process was killed because of it."""
    if was_cancelled:
        return TaskCancelled("The task was cancelled, but went on; its process was killed.")
    return TaskTimeout("The call went on after its timeout; its process was killed.")
