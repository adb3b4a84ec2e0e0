"""The exceptions of `retry_on`, by the paths that are stored with a call."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ..core.failures import name_of
from . import modules
from .fields import is_exception

logger = logging.getLogger(__name__)


def path(kind: type[BaseException]) -> str:
    """Module and qualified name, which has dots for a nested class. Both can be anything, so that the path
    may lead nowhere."""
    try:
        module = f"{kind.__module__}"
    except BaseException:
        module = "unknown"
    # a lone surrogate can't be stored
    return f"{module}.{name_of(kind)}".encode(errors="backslashreplace").decode()


def can_be_found(kind: type[BaseException]) -> bool:
    """Whether the path of an exception leads to it."""
    return _found(path(kind)) is kind


def found(paths: Sequence[str], task: str) -> tuple[type[BaseException], ...] | None:
    """The exceptions that the code defines under these paths. Others are left out, with a warning: the code
    may have changed since the call was enqueued. None if nothing is left."""
    kinds = [_found(one) for one in paths]
    for one, kind in zip(paths, kinds, strict=True):
        if kind is None:
            logger.warning("%r, in the retry_on of a call of %s, is no exception; ignored.", one, task)
    kept = tuple(kind for kind in kinds if kind is not None)
    return kept if kept or not paths else None


def _found(name: str) -> type[BaseException] | None:
    try:
        value = modules.found(name)
    except Exception:
        # a module may raise anything while it is imported
        return None
    return value if is_exception(value) else None
