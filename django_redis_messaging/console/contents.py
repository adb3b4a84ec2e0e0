"""What jobs and timers contain, as pages show it: read although it may be cut, masked by name, bounded."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Sequence
from typing import Any

from django.utils.translation import gettext as _

from ..core.encoding import printable
from ..services.jobs.listing import text_of
from .access import Console

#: characters of the contents in a row of a table, and of each value on the page of a job
MAX_LINE, MAX_TEXT = 160, 20_000
#: what stands for the end of something that is cut
ELLIPSIS = "…"
_TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[^\s",:\[\]{}]+|[,:\[\]{}])', re.DOTALL)
_CLOSERS = {"[": "]", "{": "}"}


def parse(text: str) -> list[Any]:
    """The values of JSON with commas in between, whose end may be missing: what is left of them. Raises
    ValueError.

    >>> parse('7, {"to": "ann"}'), parse('7, {"to": "an'), parse('7, {"t')
    ([7, {'to': 'ann'}], [7, {'to': 'an…'}], [7, {}])
    """
    try:
        return list(json.loads(f"[{text}]"))
    except RecursionError as error:
        raise ValueError("The JSON is nested too deeply.") from error
    except ValueError:
        return list(json.loads(_completed("[" + text)))


def _completed(text: str) -> str:
    """The JSON that remains of a text without its last, incomplete item."""
    closers: list[str] = []
    at, before, kept = 0, "", ""
    while (found := _TOKEN.match(text, at)) is not None:
        token, at = found[1], found.end()
        if token in _CLOSERS:
            closers.append(_CLOSERS[token])
        elif token in ("]", "}"):
            if closers[-1:] != [token]:
                raise ValueError("The JSON has a bracket too many.")
            closers.pop()
        # The names in an object are no values; a number at the end may be cut.
        is_key = closers[-1:] == ["}"] and before != ":" and token[0] == '"'
        if token not in (",", ":") and not is_key and (at < len(text) or token[0] in '"[]{}'):
            kept = text[:at] + "".join(reversed(closers))
        before = token
    rest = text[at:].lstrip()
    if rest[:1] == '"' and (before == ":" or closers[-1:] == ["]"]):
        return text[:at] + json.dumps(text_of(rest) + ELLIPSIS) + "".join(reversed(closers))
    return kept


def masked(console: Console, value: Any) -> Any:
    """A value in which the values of names that the site masks are replaced, at any depth."""
    if isinstance(value, dict):
        shown = {name: (one, console.mask(name, one)) for name, one in value.items()}
        return {name: masked(console, new) if new is old else new for name, (old, new) in shown.items()}
    return [masked(console, one) for one in value] if isinstance(value, list) else value


class Contents:
    """The contents of a job: the arguments of a task, or the payload of another job."""

    def __init__(self, console: Console, text: str, *, task: str = "") -> None:
        """`text`: JSON values with commas in between, of which the last may be cut. `task`: the dotted name
        of a task, if they are its list of arguments and its keyword arguments."""
        try:
            values = parse(text)
        except ValueError:
            values = None
        #: whether nothing can be shown
        self.is_unreadable = values is None
        #: the values, each with its name, which may be empty
        self.values: list[tuple[str, Any]] = []
        if values is not None:
            self.values = _named(console, values, task)

    @classmethod
    def of_call(cls, console: Console, args: Any, kwargs: Any, *, task: str) -> Contents:
        """The arguments of a call of a task."""
        return cls(console, f"{_json(args)}, {_json(kwargs)}", task=task)

    @property
    def line(self) -> str:
        """The contents in one line, as in a call: `17, to="ann"`."""
        if self.is_unreadable:
            return _("can't be read")
        parts = [f"{name}={_json(value)}" if name else _json(value) for name, value in self.values]
        return shortened(printable(", ".join(parts)), MAX_LINE)

    @property
    def texts(self) -> list[tuple[str, str]]:
        """Each value with its name, over several lines."""
        return [(printable(name), block(_json(value, indent=2))) for name, value in self.values]


def _named(console: Console, values: Sequence[Any], task: str) -> list[tuple[str, Any]]:
    """The values with their names. The values of arguments without a name are masked by their parameter's."""
    if not task:
        return [("", masked(console, one)) for one in values]
    given = [*values, [], {}]
    args, kwargs = (given[0], given[1]) if isinstance(given[0], list) else ([], {})
    names = parameters_of(task)
    found = []
    for at, value in enumerate(args):
        name = names[at] if at < len(names) else ""
        found.append(("", masked(console, {name: value})[name]))
    return found + list(masked(console, kwargs if isinstance(kwargs, dict) else {}).items())


def parameters_of(task: str) -> list[str]:
    """The names of the positional parameters of a task; empty if this code doesn't have it."""
    from ..tasks.compat import InvalidTask
    from ..tasks.records import find_task

    try:
        found = find_task(task)
    except InvalidTask:
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [one.name for one in inspect.signature(found.func).parameters.values() if one.kind in kinds]
    return names[1:] if found.takes_context else names


def _json(value: Any, *, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def block(text: str) -> str:
    """A text of several lines as it is shown: bounded, control characters escaped."""
    return "\n".join(map(printable, shortened(text, MAX_TEXT).split("\n")))


def shortened(text: str, limit: int) -> str:
    """The beginning of a text."""
    return text if len(text) <= limit else text[: limit - 1] + ELLIPSIS
