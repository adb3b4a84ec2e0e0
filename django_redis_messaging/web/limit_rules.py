"""The limits that are known before a request: those of the setting RATE_LIMITS and of decorators."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from .. import conf
from ..errors import ConfigurationError
from ..services.rates import RateLimit
from .limits import RequestLimit, declared, rate_limit, request_limit

#: options of a rule besides those of `rate_limit`
_PATHS = ("path", "exclude")
#: options of `rate_limit` that a rule has
_OPTIONS = tuple(name for name in inspect.signature(rate_limit).parameters if name != "block")


@dataclasses.dataclass(frozen=True)
class Rule:
    """A limit for the requests to some paths."""

    limit: RequestLimit
    #: beginnings of paths
    paths: tuple[str, ...]
    excluded: tuple[str, ...]

    def concerns(self, path: str) -> bool:
        return path.startswith(self.paths) and not path.startswith(self.excluded)


def read_rules() -> list[Rule]:
    """The rules of RATE_LIMITS. Raises ConfigurationError."""
    given = conf.current().RATE_LIMITS
    if not isinstance(given, list | tuple):
        raise ConfigurationError(f"RATE_LIMITS in {conf.NAME} must be a list, not {type(given).__name__}.")
    rules: list[Rule] = []
    for number, options in enumerate(given):
        try:
            rules.append(_rule(options, [rule.limit.name for rule in rules]))
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"RATE_LIMITS[{number}] in {conf.NAME}: {error}") from error
    return rules


def _rule(given: Mapping[str, Any], names: Sequence[str]) -> Rule:
    if not isinstance(given, Mapping):
        raise TypeError(f'it must be a dict such as {{"rate": "100/m"}}, not {type(given).__name__}.')
    unknown = [key for key in given if key not in (*_OPTIONS, *_PATHS)]
    if unknown or "rate" not in given:
        problem = f"has the unknown key {unknown[0]!r}" if unknown else "has no rate"
        raise ValueError(f"it {problem}. The keys: {', '.join((*_OPTIONS, *_PATHS))}.")
    paths, excluded = _paths(given.get("path", "/"), "path"), _paths(given.get("exclude", ()), "exclude")
    options = {key: value for key, value in given.items() if key not in _PATHS}
    if "name" not in options:
        number = 1 + sum(name.partition("#")[0] == paths[0] for name in names)
        options["name"] = f"{paths[0]}#{number}" if number > 1 else paths[0]
    return Rule(request_limit(**options), paths, excluded)


def _paths(given: str | Sequence[str], what: str) -> tuple[str, ...]:
    paths = (given,) if isinstance(given, str) else tuple(given)
    if not all(isinstance(path, str) and path.startswith("/") for path in paths) or (
        what == "path" and not paths
    ):
        raise ValueError(f'{what} must be the beginning of a path such as "/api/", or a list of these.')
    return paths


def declared_services() -> list[RateLimit]:
    """Those that have a name, as rate limits in Redis with the prefix that is in use now."""
    limits = [*declared, *(rule.limit for rule in read_rules())]
    return [limit.new_service() for limit in limits if limit.name]
