"""The names of the lock and of the semaphore of a call: a template filled in with its arguments, or what a
function of the arguments returns."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from inspect import Signature
from string import Formatter
from typing import Any, NamedTuple

from ..core.keys import name as checked
from ..errors import InvalidArgument

#: beginning of the names of the semaphores of tasks
SEMAPHORE_PREFIX = "task:"

#: a str with parameters in braces, or a function of the arguments that returns the name
NameSource = str | Callable[..., str]


class Needs(NamedTuple):
    """What a call has to acquire before it runs, as it is stored with the job."""

    #: name of the Lock; empty: none
    lock: str
    #: name of the Semaphore; empty: none
    semaphore: str
    #: limit of the semaphore; None: the `concurrency` of the task, as the worker's code defines it
    limit: int | None = None


def check_source(source: NameSource, what: str, func: Callable[..., Any], takes_context: bool) -> None:
    """Raise TypeError or InvalidArgument if no name can be made from `source` for any call of the task."""
    if not isinstance(source, str):
        if not callable(source):
            raise TypeError(
                f"{what} must be a str or a function of the arguments, not {type(source).__name__}."
            )
        return
    parameters, fields = _signature(func, takes_context).parameters, _fields(source, what)
    for field in fields:
        if field not in parameters:
            raise InvalidArgument(
                f"{what} {source!r} refers to {field!r}, but the parameters of the task are "
                f"{', '.join(parameters) or 'none'}. Write {{{{ and }}}} for literal braces."
            )
    if not fields:
        checked(source.format(), what)


def call_name(
    source: NameSource,
    what: str,
    func: Callable[..., Any],
    takes_context: bool,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> str:
    """The name for one call. Raises TypeError if the arguments don't fit the task, or a function returned no
    str; InvalidArgument if the template can't be filled in, or the name is not valid."""
    if not isinstance(source, str):
        return checked(source(*args, **kwargs), what)
    bound = _signature(func, takes_context).bind(*args, **kwargs)
    bound.apply_defaults()
    try:
        name = source.format_map(bound.arguments)
    except (LookupError, AttributeError, TypeError, ValueError, ArithmeticError) as error:
        raise InvalidArgument(
            f"{what} {source!r} can't be filled in with these arguments: {error!r}."
        ) from None
    return checked(name, what)


def as_bound(
    func: Callable[..., Any], takes_context: bool, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """The arguments of a call, by position where the function allows it; unchanged if they don't fit it."""
    if not kwargs:
        return args, kwargs
    try:
        bound = _signature(func, takes_context).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return args, kwargs
    return bound.args, bound.kwargs


def check_argument(func: Callable[..., Any], takes_context: bool) -> None:
    """Raise TypeError if a function can't be called with one positional argument."""
    _signature(func, takes_context).bind(None)


@functools.lru_cache(maxsize=1024)
def _signature(func: Callable[..., Any], takes_context: bool) -> Signature:
    """The signature of a task's function, without the context and without annotations: these may refer to
    names that exist only for type checkers."""
    signature = _signature_of(func)
    parameters = list(signature.parameters.values())[1 if takes_context else 0 :]
    return Signature([one.replace(annotation=Signature.empty) for one in parameters])


def _signature_of(func: Callable[..., Any]) -> Signature:
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(func, annotation_format=Format.FORWARDREF)
    return inspect.signature(func)


@functools.lru_cache(maxsize=1024)
def _fields(template: str, what: str) -> tuple[str, ...]:
    """The parameters that a template refers to."""
    try:
        parts = [(field, spec) for _, field, spec, _ in Formatter().parse(template) if field is not None]
    except ValueError as error:
        raise InvalidArgument(f"{what} {template!r} is not a valid template: {error}.") from None
    if any("{" in (spec or "") for _, spec in parts):
        # an argument could be a width that takes gigabytes
        raise InvalidArgument(f"{what} {template!r} has a field inside a format specification: remove it.")
    return tuple(re.split(r"[.\[]", field, maxsplit=1)[0] for field, _ in parts)
