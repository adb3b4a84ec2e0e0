"""Directories and files that only their owner may read: they contain messages and session keys."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import IO

from ..errors import ConfigurationError

#: umask of a process whose files only their owner may read and write
UMASK = 0o077


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
