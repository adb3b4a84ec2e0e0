"""Whether REDIS_MESSAGING is a dict of known keys with good values.

What is good follows from the annotations of `conf.Settings`: a new setting needs nothing here.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any

from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Warning
from django.utils.module_loading import import_string

from .. import conf
from ..core import keys

#: numbers that may be 0; the others are more than 0
MAY_BE_ZERO = {"CHAT_KEEP_LAST", "TYPING_MAX_MEMBERS"}
#: settings that name a thing of Python by its dotted path
PATHS = {"OBSERVE", "IDENTITY"}

_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "a str",
    types.NoneType: "None",
    Sequence: "a list of str",
    Callable: "a callable",
}


def check_settings(**_: object) -> list[CheckMessage]:
    """REDIS_MESSAGING: its type, its keys, its values."""
    given = getattr(django_settings, conf.NAME, {})
    if not isinstance(given, dict):
        return [
            Error(
                f"{conf.NAME} must be a dict, not {type(given).__name__}.",
                hint=f'Write {conf.NAME} = {{"CHAT_MAX_LENGTH": 5000}}, or leave it out.',
                id="messaging.E001",
            )
        ]
    hints = typing.get_type_hints(conf.Settings)
    messages = (
        _about_value(key, value, _kinds(hints[key])) if key in hints else _about_unknown(key)
        for key, value in given.items()
    )
    return [message for message in messages if message is not None]


def _about_unknown(key: object) -> CheckMessage:
    names = [field.name for field in dataclasses.fields(conf.Settings)]
    near = difflib.get_close_matches(str(key).upper(), names, n=1)
    return Warning(
        f"{conf.NAME} has the unknown key {key!r}, which has no effect.",
        hint=f"Did you mean {near[0]!r}?" if near else f"The known keys: {', '.join(names)}.",
        id="messaging.W001",
    )


def _about_value(key: str, value: object, kinds: list[Any]) -> CheckMessage | None:
    wanted = _wanted(key, value, kinds)
    if wanted is not None:
        return Error(
            f"{conf.NAME}[{key!r}] must be {wanted}, not {value!r}.",
            hint=f"Correct it, or leave it out: its default is {getattr(conf.Settings, key)!r}.",
            id="messaging.E002",
        )
    return _about_path(key, value) if key in PATHS and isinstance(value, str) else None


def _about_path(key: str, path: str) -> CheckMessage | None:
    try:
        named = import_string(path)
    except Exception as error:
        problem = f"can't be imported: {error}"
    else:
        if callable(named):
            return None
        problem = "is no class and no function"
    return Error(
        f"{conf.NAME}[{key!r}]: {path!r} {problem}.",
        hint='Give the dotted path of something in a module that can be imported: "shop.chat.Identity".',
        id="messaging.E003",
    )


def _kinds(hint: Any) -> list[Any]:
    """The types that an annotation allows: `float | None` → float, NoneType; `Sequence[str]` → Sequence."""
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else [hint]
    return [typing.get_origin(kind) or kind for kind in kinds]


def _wanted(key: str, value: object, kinds: list[Any]) -> str | None:
    """What `value` should have been; None: it is good."""
    if not _has_kind(value, kinds):
        return " or ".join(_WORDS[kind] for kind in kinds)
    if isinstance(value, int | float):
        return _wanted_number(key, value)
    return _wanted_prefix(value) if key == "PREFIX" and isinstance(value, str) else None


def _has_kind(value: object, kinds: list[Any]) -> bool:
    if isinstance(value, bool):
        return False  # to Python it is an int
    if isinstance(value, list | tuple):
        return Sequence in kinds and all(isinstance(item, str) for item in value)
    if callable(value):
        return Callable in kinds
    given = type(value)
    return given in kinds or (given is int and float in kinds)


def _wanted_number(key: str, value: float) -> str | None:
    if math.isfinite(value) and (value > 0 or (value == 0 and key in MAY_BE_ZERO)):
        return None
    return "0 or more" if key in MAY_BE_ZERO else "more than 0, and finite"


def _wanted_prefix(value: str) -> str | None:
    try:
        keys.checked_prefix(value)
    except ValueError as error:
        return f"fit to begin every key ({error})"
    return None
