"""Finds files that are complete: those that have not changed for some time."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator, Sequence

from ..services.files.sources import Source, expand

logger = logging.getLogger(__name__)


class Watch:
    """Watches files and directories by listing them; a directory stands for the files that
    `FileChannel.publish` takes of it.

    A file has settled when its size and modification time have not changed for `settle` seconds while they
    were watched. The modification time is not compared with the clock: that of a file server may differ.
    """

    def __init__(self, paths: Sequence[str], settle: float) -> None:
        self._paths = paths
        self._settle = settle
        #: when each file was found first as it is now
        self._since: dict[Source, float] = {}
        self._done: dict[str, Source] = {}

    def settled(self, now: float) -> list[Source]:
        """The files that have settled and are not published, in order. Raises OSError."""
        present = list(self._find())
        paths = {file.path for file in present}
        self._done = {path: file for path, file in self._done.items() if path in paths}
        found = [file for file in present if self._done.get(file.path) != file]
        self._since = {file: self._since.get(file, now) for file in found}
        return [file for file, since in self._since.items() if now - since >= self._settle]

    def mark_done(self, file: Source) -> None:
        """Leave this file out from now on, until it changes."""
        if file.path in self._done:
            logger.warning("%r had changed since it was published: published again.", file.path)
        self._done[file.path] = file

    def forget(self, file: Source) -> None:
        """Let this file settle again."""
        self._since.pop(file, None)

    def _find(self) -> Iterator[Source]:
        for path in [path for given in self._paths for path in expand(os.path.abspath(given))]:
            try:
                found = os.stat(path)
            except FileNotFoundError:  # deleted since it was listed
                continue
            if stat.S_ISREG(found.st_mode):
                yield Source(path, found.st_size, found.st_mtime_ns)
