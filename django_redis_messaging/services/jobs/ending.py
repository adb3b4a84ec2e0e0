"""Ends a process in which threads would wait forever."""

from __future__ import annotations

import faulthandler
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ...core.failures import LoopGuard
from ...core.retry import deadline

logger = logging.getLogger(__name__)

#: seconds for the last calls and log lines; then the process ends in any case
END_TIMEOUT = 2.0
#: the file descriptor of the standard error stream
STDERR = 2


def end_process(name: str, locks: Sequence[Any], release: Callable[[], object]) -> None:
    """End this process with an error, since an interrupted thread, the current one, holds these locks. It
    calls `release` before, and logs why: this thread can acquire its own locks, but others could be held."""
    faulthandler.dump_traceback_later(END_TIMEOUT, exit=True, file=STDERR)  # needs no lock and no Python code
    why = f"{name}: an interrupted call left locks held, which other threads would wait for: {locks[:3]}"
    with suppress(OSError):  # it may be closed
        os.write(STDERR, f"{why}; exiting.\n".encode(errors="backslashreplace"))
    with LoopGuard(logger, "Releasing the jobs of %s failed.", name), deadline(END_TIMEOUT / 2):
        release()
    with LoopGuard(logger, "Logging failed."):
        logger.critical("%s; exiting.", why)
        logging.shutdown()
    os._exit(1)
