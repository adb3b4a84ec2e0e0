"""The arguments of a call: whether its task can be called with them, and the names that are made from them.

The names of its lock, permit, rate, group and tags are templates, filled in with its arguments, or what a
function of the arguments returns.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature
from string import Formatter
from typing import Any, NamedTuple

from ..core.encoding import name as checked
from ..errors import InvalidArgument
from .compat import Task

#: a str with parameters in braces, or a function of the arguments that returns the name
NameSource = str | Callable[..., str]


class Accepted(NamedTuple):
    """What a function can be called with, so that most calls are checked by a few comparisons."""

    #: the numbers of positional arguments, in calls without others
    counts: range
    #: by the number of positional arguments: names that must be given, and names that may be given. Empty if
    #: the function takes any name
    required: tuple[frozenset[str], ...]
    allowed: tuple[frozenset[str], ...]


def check_call(task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise TypeError if a task can't be called with these arguments."""
    accepted, given, names = accepted_by(task.func, task.takes_context), len(args), kwargs.keys()
    if given < len(accepted.allowed) and accepted.required[given] <= names <= accepted.allowed[given]:
        return
    if (problem := misfit(task, args, kwargs)) is not None:
        raise TypeError(f"{task.module_path} can't be called with these arguments: {problem}.")


def misfit(task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Why a task can't be called with these arguments; None if it can."""
    try:
        _own_signature(task.func, task.takes_context).bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    return None


@functools.lru_cache(maxsize=1024)
def accepted_by(func: Callable[..., Any], takes_context: bool) -> Accepted:
    """What the function of a task can be called with, besides the context."""
    parameters = _own_signature(func, takes_context).parameters.values()
    kinds = {one.kind for one in parameters}
    positional = [one for one in parameters if one.kind <= Parameter.POSITIONAL_OR_KEYWORD]
    rests = [
        [*positional[given:], *(one for one in parameters if one.kind == Parameter.KEYWORD_ONLY)]
        for given in range(len(positional) + 1)
    ]
    required = tuple(frozenset(one.name for one in rest if one.default is one.empty) for rest in rests)
    least = sum(bool(names) for names in required)
    most = sys.maxsize - 1 if Parameter.VAR_POSITIONAL in kinds else len(positional)
    # required[-1] are those that can be given by name only
    counts = range(0) if required[-1] else range(least, most + 1)
    if Parameter.VAR_KEYWORD in kinds:
        return Accepted(counts, (), ())
    allowed = (frozenset(one.name for one in rest if one.kind != Parameter.POSITIONAL_ONLY) for rest in rests)
    return Accepted(counts, required, tuple(allowed))


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


def takes_values(func: Callable[..., Any], takes_context: bool) -> bool:
    """Whether the callback of a batch has a parameter `values`. Raises TypeError if it can't be called with
    the id of the batch, and with `values` if it has that parameter."""
    has_values = "values" in _signature(func, takes_context).parameters
    _own_signature(func, takes_context).bind(None, **({"values": []} if has_values else {}))
    return has_values


def check_source(source: NameSource, what: str, func: Callable[..., Any], takes_context: bool) -> None:
    """Raise TypeError or InvalidArgument if no name can be made from `source` for any call of the task."""
    if not isinstance(source, str):
        if not callable(source):
            raise TypeError(
                f"{what} must be a str or a function of the arguments, not {type(source).__name__}."
            )
        return
    parameters, fields = _signature(func, takes_context).parameters, _fields(source, what)
    for name in fields:
        if name not in parameters:
            raise InvalidArgument(
                f"{what} {source!r} refers to {name!r}, but the parameters of the task are "
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
    try:
        bound = _signature(func, takes_context).bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{_unfilled(source, what, func)}: {error}.") from None
    bound.apply_defaults()
    try:
        name = source.format_map(bound.arguments)
    except (LookupError, AttributeError, TypeError, ValueError, ArithmeticError) as error:
        raise InvalidArgument(f"{_unfilled(source, what, func)}: {error!r}.") from None
    return checked(name, what)


def _unfilled(template: str, what: str, func: Callable[..., Any]) -> str:
    name = f"{func.__module__}.{func.__qualname__}"
    return f"{what} {template!r} of {name} can't be filled in with these arguments"


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


def _own_signature(func: Callable[..., Any], takes_context: bool) -> Signature:
    """What a call has to fit. Of a function that wraps another one, its own parameters count: a decorator may
    pass other arguments. The names of templates are those of the wrapped one."""
    return _signature(func, takes_context, follow_wrapped=False)


@functools.lru_cache(maxsize=1024)
def _signature(func: Callable[..., Any], takes_context: bool, *, follow_wrapped: bool = True) -> Signature:
    """The signature of a task's function, without the context and without annotations: these may refer to
    names that exist only for type checkers."""
    parameters = list(_signature_of(func, follow_wrapped).parameters.values())
    if takes_context and parameters[0].kind != Parameter.VAR_POSITIONAL:
        parameters = parameters[1:]
    return Signature([one.replace(annotation=Signature.empty) for one in parameters])


def _signature_of(func: Callable[..., Any], follow_wrapped: bool) -> Signature:
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(func, follow_wrapped=follow_wrapped, annotation_format=Format.FORWARDREF)
    return inspect.signature(func, follow_wrapped=follow_wrapped)
