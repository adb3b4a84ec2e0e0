"""What operations are made of, and what sends them to Redis."""

from __future__ import annotations

import os
from collections.abc import Callable


def after_fork(function: Callable[[], object]) -> None:
    """Call `function` in each process that this one forks. Systems without fork, such as Windows, need no
    call."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)
