"""Checks that REDIS_MESSAGING is a dict of known keys with valid values.

The valid types follow from the annotations of `conf.Settings`, so a new setting needs no change here.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Warning
from django.utils.module_loading import import_string

from .. import conf
from ..core import durability, keys, runs

#: numbers that may be 0; the others must be greater than 0
MAY_BE_ZERO = {"CHAT_KEEP_LAST", "PRESENCE_MAX_MEMBERS", "TYPING_MAX_MEMBERS"}
#: the largest number that a setting may be
MAXIMA = {"CHAT_MAX_MEMBERS": 10_000}
#: settings that are dotted paths of Python objects
PATHS = {"OBSERVE", "IDENTITY"}

_TYPE_NAMES: dict[Any, str] = {
    bool: "True or False",
    int: "an integer",
    float: "a number",
    str: "a str",
    types.NoneType: "None",
    Sequence: "a list of str",
    Mapping: durability.FORM,
    Callable: "a callable",
}


def check_settings(**_: object) -> list[CheckMessage]:
    """Check the type, keys and values of REDIS_MESSAGING."""
    given = getattr(django_settings, conf.NAME, {})
    if not isinstance(given, dict):
        return [
            Error(
                f"{conf.NAME} must be a dict, not {type(given).__name__}.",
                hint=f'Write {conf.NAME} = {{"CHAT_MAX_LENGTH": 5000}}, or remove it.',
                id="messaging.E001",
            )
        ]
    hints = typing.get_type_hints(conf.Settings)
    messages = (
        _check_value(key, value, _kinds(hints[key])) if key in hints else _check_unknown(key)
        for key, value in given.items()
    )
    return [message for message in messages if message is not None]


def _check_unknown(key: object) -> CheckMessage:
    names = [field.name for field in dataclasses.fields(conf.Settings)]
    near = difflib.get_close_matches(str(key).upper(), names, n=1)
    return Warning(
        f"{conf.NAME} has the unknown key {key!r}, which has no effect.",
        hint=f"Did you mean {near[0]!r}?" if near else f"The known keys: {', '.join(names)}.",
        id="messaging.W001",
    )


def _check_value(key: str, value: object, kinds: list[Any]) -> CheckMessage | None:
    expected = _expected(key, value, kinds)
    if expected is not None:
        return Error(
            f"{conf.NAME}[{key!r}] must be {expected}, not {value!r}.",
            hint=f"Correct it, or remove it: its default is {getattr(conf.Settings, key)!r}.",
            id="messaging.E002",
        )
    return _check_path(key, value) if key in PATHS and isinstance(value, str) else None


def _check_path(key: str, path: str) -> CheckMessage | None:
    try:
        named = import_string(path)
    except Exception as error:
        problem = f"can't be imported: {error}"
    else:
        if callable(named):
            return None
        problem = "is neither a class nor a function"
    return Error(
        f"{conf.NAME}[{key!r}]: {path!r} {problem}.",
        hint='Use the dotted path of an object in an importable module, such as "shop.chat.Identity".',
        id="messaging.E003",
    )


def _kinds(hint: Any) -> list[Any]:
    """The types that an annotation allows: `float | None` → float, NoneType; `Sequence[str]` → Sequence."""
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else [hint]
    return [typing.get_origin(kind) or kind for kind in kinds]


def _expected(key: str, value: object, kinds: list[Any]) -> str | None:
    """What `value` must be; None if it is valid."""
    if key == "TEST":
        return None if runs.is_valid(value) else runs.FORM
    if not _has_kind(value, kinds):
        return " or ".join(_TYPE_NAMES[kind] for kind in kinds)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _expected_number(key, value)
    return _expected_prefix(value) if key == "PREFIX" and isinstance(value, str) else None


def _has_kind(value: object, kinds: list[Any]) -> bool:
    if isinstance(value, bool):
        return bool in kinds  # a bool is an int, too
    if isinstance(value, Mapping):
        return Mapping in kinds and durability.is_valid(value)
    if isinstance(value, list | tuple):
        return Sequence in kinds and all(isinstance(item, str) for item in value)
    if callable(value):
        return Callable in kinds
    given = type(value)
    return given in kinds or (given is int and float in kinds)


def _expected_number(key: str, value: float) -> str | None:
    if value > MAXIMA.get(key, math.inf):
        return f"at most {MAXIMA[key]}"
    if math.isfinite(value) and (value > 0 or (value == 0 and key in MAY_BE_ZERO)):
        return None
    return "0 or more" if key in MAY_BE_ZERO else "greater than 0 and finite"


def _expected_prefix(value: str) -> str | None:
    try:
        keys.checked_prefix(value)
    except ValueError as error:
        return f"a valid beginning of keys ({error})"
    return None
