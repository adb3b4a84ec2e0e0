"""Exceptions that can't be formatted, or end the process where they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class TextExits(Exception):
    """Its text ends the process."""

    def __str__(self) -> str:
        raise SystemExit(3)


class AttributesExit(Exception):
    """Reading an attribute that it does not have ends the process."""

    def __getattr__(self, name: str) -> object:
        raise SystemExit(1)


class NamelessKind(type):
    """Classes whose qualified name can't be read."""

    def __getattribute__(cls, name: str) -> Any:
        if name == "__qualname__":
            raise RuntimeError("no name")
        return super().__getattribute__(name)


class Nameless(Exception, metaclass=NamelessKind):
    """See NamelessKind."""


def with_notes() -> Exception:
    """Its notes are no list."""
    error = ValueError("n")
    error.__notes__ = 5  # type: ignore[assignment]
    return error


def deep_group() -> Exception:
    """More levels than Python's own formatting can follow."""
    error: Exception = ValueError(1)
    for _ in range(3000):
        error = ExceptionGroup("g", [error])
    return error


#: make them
UNUSUAL: list[Callable[[], BaseException]] = [
    lambda: SyntaxError("x", ("f", 1, 1, 12345)),
    lambda: SyntaxError("x", ("f", 1, "a", "text")),
    lambda: type("Moved", (Exception,), {"__module__": 3})("x"),
    lambda: TextExits("x"),
    lambda: AttributesExit("x"),
    lambda: Nameless("x"),
    with_notes,
    deep_group,
    lambda: SystemExit(4),
    lambda: GeneratorExit(),
]
