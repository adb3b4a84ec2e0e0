"""Starts the child processes of a worker: forked from one that has loaded the site, or by the command line.

The fork server is forked from the supervisor before that has threads. It imports the modules of the tasks,
forks a child on request, and reports its end. Nothing else runs there, so that a fork copies no lock that
another thread holds; and the children share its memory (as Android's zygote, and the forkserver of
multiprocessing, which starts from an empty process). If the site itself starts threads, a fork would copy the
locks that these hold: then each child is started by the command line of the supervisor.

Nothing of this outlives the supervisor: its end closes the sockets, and on Linux the kernel kills the others.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from typing import NoReturn, Protocol

from ...core.operations import LoopGuard
from . import threads

logger = logging.getLogger(__name__)

#: environment variable by which a child that was started by the command line finds its files
CHILD = "DJANGO_REDIS_MESSAGING_CHILD"
#: a request to the fork server: what, number of the child. A start comes with the files of the child
_REQUEST = struct.Struct("<cI")
_START, _KILL = b"S", b"K"
#: what it reports: what, number of the child, its process id or exit code; or how many threads it has
_REPORT = struct.Struct("<cIi")
_STARTED, _ENDED, _LOADED = b"S", b"E", b"L"
#: option of prctl: the signal that the kernel sends a process when its parent ends
_PR_SET_PDEATHSIG = 1

#: what a child process does with its files: a socket, and shared memory
Serve = Callable[[int, int], object]


class Process(Protocol):
    """A child process, as its supervisor sees it."""

    @property
    def pid(self) -> int | None:
        """None until it is known."""

    def kill(self) -> None:
        """Kill it, unless it has ended."""


#: called in a thread with the exit code of a child, negative for a signal; None if it is unknown
OnExit = Callable[[int | None], object]


def make_starter(method: str | None, load: Callable[[], object], serve: Serve) -> ForkServer | Spawner:
    """What starts children: by the method "fork" or "spawn". None: they are forked on Linux, unless the site
    has started threads. The worker itself must have started none."""
    before = count_threads()
    if method == "spawn" or (method is None and (sys.platform != "linux" or before > 1)):
        return Spawner()
    server = ForkServer(load, serve)
    count = max(before, server.threads)
    if count > 1 and method is None:
        server.close()
        return Spawner()
    if count > 1:
        logger.warning(
            "Child processes are forked from a process with %d threads: a lock that another thread holds at "
            "that moment is never released in them.",
            count,
        )
    return server


class Spawner:
    """Starts children by the command line of this process. Each loads the site itself."""

    def __init__(self) -> None:
        # for the kernel, this thread is the parent of the children, which may be killed when it ends
        self._thread = ThreadPoolExecutor(1, "spawn")

    def start(self, files: tuple[int, int], on_exit: OnExit) -> Process:
        """Start a child with these files."""
        process = self._thread.submit(_spawn, files).result()
        threading.Thread(
            target=lambda: on_exit(process.wait()), name=f"end of process {process.pid}", daemon=True
        ).start()
        return process

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False)


def _spawn(files: tuple[int, int]) -> subprocess.Popen[bytes]:
    environment = {**os.environ, CHILD: ",".join(map(str, files))}
    command = [sys.executable, *sys.orig_argv[1:]]
    return subprocess.Popen(command, env=environment, pass_fds=files)  # noqa: S603  # that of this process


def inherited_files() -> tuple[int, int] | None:
    """The files of this process if a Spawner has started it: then it is a child from now on."""
    numbers = os.environ.pop(CHILD, None)
    if numbers is None:
        return None
    die_with(os.getppid())
    ignore_stop_signals()
    first, second = map(int, numbers.split(","))
    for file in (first, second):
        os.set_inheritable(file, False)
    return first, second


class ForkServer:
    """The fork server, as its supervisor sees it. `load` is called there once, `serve` in each child."""

    def __init__(self, load: Callable[[], object], serve: Serve) -> None:
        self._control, theirs = socket.socketpair()
        self._numbers = count(1)
        self._children: dict[int, _ForkedProcess] = {}
        self._lock = threading.Lock()
        parent = os.getpid()
        self._pid = _fork()
        if not self._pid:
            self._control.close()
            _leave_after(lambda: _Server(theirs, serve).run(load, parent))
        theirs.close()
        #: threads that run there: what they hold would be copied by a fork
        self.threads = self._await_load()
        threading.Thread(target=self._read, name="fork server", daemon=True).start()

    def start(self, files: tuple[int, int], on_exit: OnExit) -> Process:
        """Fork a child with these files."""
        child = _ForkedProcess(next(self._numbers), self._kill, on_exit)
        with self._lock:
            self._children[child.number] = child
        try:
            socket.send_fds(self._control, [_REQUEST.pack(_START, child.number)], files)
        except OSError:  # the server has ended
            self._end(child.number, None)
        return child

    def close(self) -> None:
        """End it, and all children."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)

    def _await_load(self) -> int:
        report = self._control.recv(_REPORT.size, socket.MSG_WAITALL)
        if len(report) < _REPORT.size:
            code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
            raise ChildProcessError(f"The process that loads the task modules ended with exit code {code}.")
        threads: int = _REPORT.unpack(report)[2]
        return threads

    def _read(self) -> None:
        """Handle the reports, until the server ends."""
        with LoopGuard(logger, "Reading the reports of the fork server failed."):
            while len(report := self._control.recv(_REPORT.size, socket.MSG_WAITALL)) == _REPORT.size:
                what, number, value = _REPORT.unpack(report)
                if what == _STARTED:
                    self._children[number].pid = value
                else:
                    self._end(number, value)
        for number in list(self._children):
            self._end(number, None)
        os.waitpid(self._pid, 0)

    def _end(self, number: int, code: int | None) -> None:
        with self._lock:
            child = self._children.pop(number, None)
        if child is not None:
            child.on_exit(code)
            child.on_exit = _nothing  # it refers to this child

    def _kill(self, number: int) -> None:
        with suppress(OSError):  # the server, and with it the child, has ended
            self._control.sendall(_REQUEST.pack(_KILL, number))


class _ForkedProcess:
    """A child of the fork server. The server kills it: only a parent knows that the process id is still that
    of its child."""

    def __init__(self, number: int, kill: Callable[[int], object], on_exit: OnExit) -> None:
        self.number = number
        self.pid: int | None = None
        self.on_exit = on_exit
        self._kill = kill

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        self._kill(self.number)


class _Server:
    """The fork server itself."""

    def __init__(self, control: socket.socket, serve: Serve) -> None:
        self._control = control
        self._serve = serve
        #: process id → number of a child
        self._children: dict[int, int] = {}

    def run(self, load: Callable[[], object], parent: int) -> None:
        """Load, then serve requests until the supervisor, `parent`, ends."""
        die_with(parent)
        ignore_stop_signals()
        atexit._clear()  # what the supervisor does at its end
        load()
        threads.freeze()
        self._report(_LOADED, 0, count_threads())
        self._ended, wakeup = socket.socketpair()
        self._ended.setblocking(False)
        wakeup.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
        with suppress(BrokenPipeError, ConnectionResetError, EOFError):
            self._serve_requests()
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)

    def _serve_requests(self) -> None:
        poll = select.poll()
        for file in (self._control, self._ended):
            poll.register(file, select.POLLIN)
        while True:
            ready = [file for file, _ in poll.poll()]
            if self._ended.fileno() in ready:
                with suppress(BlockingIOError):
                    self._ended.recv(4096)
                self._report_ended()
            if self._control.fileno() in ready:
                self._handle_request()

    def _handle_request(self) -> None:
        request, files, _, _ = socket.recv_fds(self._control, _REQUEST.size, 2, socket.MSG_WAITALL)
        if len(request) < _REQUEST.size:
            raise EOFError
        what, number = _REQUEST.unpack(request)
        if what == _START:
            self._start(number, files[0], files[1])
        for pid, one in self._children.items():
            if what == _KILL and one == number:
                os.kill(pid, signal.SIGKILL)

    def _start(self, number: int, channel: int, memory: int) -> None:
        parent = os.getpid()
        try:
            pid = _fork()
        except OSError as error:  # too many processes, or too little memory
            logger.error("Forking a child process failed: %s", error)
            pid = None
        if pid == 0:
            _leave_after(lambda: self._run_child(channel, memory, parent))
        os.close(channel)
        os.close(memory)
        if pid is None:
            self._report(_ENDED, number, 1)
            return
        self._children[pid] = number
        self._report(_STARTED, number, pid)

    def _run_child(self, channel: int, memory: int, parent: int) -> None:
        die_with(parent)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._control.close()
        self._ended.close()
        self._serve(channel, memory)
        atexit._run_exitfuncs()

    def _report_ended(self) -> None:
        for pid in list(self._children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._report(_ENDED, self._children.pop(pid), os.waitstatus_to_exitcode(status))

    def _report(self, what: bytes, number: int, value: int) -> None:
        self._control.sendall(_REPORT.pack(what, number, value))


def _nothing(_: int | None) -> None:
    pass


def _fork() -> int:
    """Fork; the caller has made sure that threads don't matter."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of processes with threads, from Python 3.12 on
        return os.fork()


def _leave_after(run: Callable[[], object]) -> NoReturn:
    """Call a function, then end this process: it must not return into the code of its parent."""
    code = 1
    try:
        with LoopGuard(logger, "The process %d of a worker failed.", os.getpid()):
            run()
            code = 0
    finally:
        try:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
        finally:
            os._exit(code)


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends, where it can (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def ignore_stop_signals() -> None:
    """Do nothing at the signals that a terminal, or a service manager, sends to all processes of a worker:
    the supervisor handles them. By handlers: programs that tasks start would inherit ignored signals."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)


def count_threads() -> int:
    """Threads of this process; those that C code has started, too, where the system lists them."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return threading.active_count()


def resident_memory(pid: int | str = "self") -> int:
    """Memory of a process in MiB; 0 if it has ended, or where the system has no /proc."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 2**20
    except (OSError, IndexError):
        return 0
