"""Decorators that hold something while a function runs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def within_each_call(guard: Any, function: F) -> F:
    """`function`, or the coroutine function, each call of which is in a block of `with guard`."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"{function.__qualname__} is a generator: it would run when {guard!r} has been released already. "
            "Use a with block inside it."
        )
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaiting(*args: Any, **kwargs: Any) -> Any:
            async with guard:
                return await function(*args, **kwargs)

        return cast(F, awaiting)

    @functools.wraps(function)
    def blocking(*args: Any, **kwargs: Any) -> Any:
        with guard:
            return function(*args, **kwargs)

    return cast(F, blocking)
