"""Decorators that hold a lock or a permit during each call of a function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def within_each_call(guard: Any, function: F) -> F:
    """Wrap a function, or a coroutine function, so that each call runs in a block of `with guard`."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"{function.__qualname__} is a generator function: its body would run after {guard!r} was "
            "released. Use a with block inside it."
        )
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def async_version(*args: Any, **kwargs: Any) -> Any:
            async with guard:
                return await function(*args, **kwargs)

        return cast(F, async_version)

    @functools.wraps(function)
    def blocking(*args: Any, **kwargs: Any) -> Any:
        with guard:
            return function(*args, **kwargs)

    return cast(F, blocking)
