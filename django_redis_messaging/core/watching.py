"""Ends a private server with the process that started it, even if that is killed.

A watcher, a shell that reads from a pipe, gets an end of file when the process ends, and stops the server.
(PR_SET_PDEATHSIG follows the thread that forked, not the process, and exists on Linux only; an atexit handler
doesn't run after SIGKILL.) A forked child of the process would keep the pipe open, so it closes its copy.
"""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path
from weakref import WeakSet

#: $1: pid of the server, $2: directory to remove. SIGCONT: a frozen server would not see SIGTERM.
_WATCH = 'while read -r _; do :; done; kill -TERM "$1"; kill -CONT "$1"; [ -z "$2" ] || rm -rf -- "$2"'

#: held by a fork, and while a file is open that no child may inherit
no_fork = threading.RLock()
_watchers: WeakSet[Watcher] = WeakSet()


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
