"""Checks of the values in REDIS_MESSAGING: one rule for each setting.

A rule returns what its setting must be, as the message says it; None for a valid value.
"""

from __future__ import annotations

import difflib
import inspect
import math
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.utils.module_loading import import_string

from .. import conf
from ..core import encoding, operations, outcome, testruns
from ..core.testruns import is_kind_of

Rule = Callable[[Any], str | None]

#: above all counts that can be reached, and still exact as a number in Lua
MAX_COUNT = 2**52
#: seconds: shorter times would be stored as 0 ms, which means "never" or is refused
MIN_SECONDS = 0.001
#: seconds: 100 years, the longest time that the services accept
MAX_SECONDS = 100 * 366 * 86_400
#: the largest numbers that jobs, rates and files accept
MAX_ATTEMPTS, MAX_RATE, MAX_BLOCK_BYTES, MAX_LINE_BYTES = 10_000, 10**6, 2**29, 1024**3
#: settings whose values no message shows
SECRETS = {"METRICS_TOKEN"}
#: characters of a token, so that it can't be guessed
MIN_TOKEN = 16
#: a host or domain as in ALLOWED_HOSTS, without a port
_HOST = re.compile(r"\*|\.?[\w-]+(\.[\w-]+)*|\[[0-9a-fA-F:.]+\]")
#: the classes from which those of the settings have to be derived
BASES = {
    "IDENTITY": "django_redis_messaging.web.identity.Identity",
    "CONSOLE": "django_redis_messaging.console.access.Console",
}


def _integer(least: int = 1, most: int = MAX_COUNT) -> Rule:
    def expected(value: Any) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int):
            return "an integer"
        if value < least:
            return "0 or more" if least == 0 else "greater than 0"
        return None if value <= most else f"at most {most}"

    return expected


def _seconds(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "a number of seconds"
    if math.isfinite(value) and MIN_SECONDS <= value <= MAX_SECONDS:
        return None
    return f"between {MIN_SECONDS} and {MAX_SECONDS} (100 years)"


def _whole_seconds(value: Any) -> str | None:
    return _integer()(value) or _seconds(value)


def _bool(value: Any) -> str | None:
    return None if isinstance(value, bool) else "True or False"


def _optional(rule: Rule) -> Rule:
    def expected(value: Any) -> str | None:
        form = None if value is None else rule(value)
        return f"{form}, or None" if form else None

    return expected


def _alias(value: Any) -> str | None:
    return None if isinstance(value, str) else "a str, the name of an entry of CACHES"


def _prefix(value: Any) -> str | None:
    if callable(value):
        return None if _accepts(value, 0) else "a str, or a callable without arguments"
    try:
        encoding.checked_prefix(value)
    except (TypeError, ValueError) as error:
        return f"a valid beginning of keys, or a callable that returns one ({str(error).rstrip('.')})"
    return None


def _accepts(function: Callable[..., object], count: int) -> bool:
    """Whether it can be called with so many arguments; True if that isn't known."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # of a function that is written in C
        return True
    return True


def _durability(value: Any) -> str | None:
    return None if outcome.is_valid_durability(value) else outcome.DURABILITY_FORM


def _test(value: Any) -> str | None:
    return None if testruns.is_valid_test(value) else testruns.TEST_FORM


def _path(value: Any) -> str | None:
    return None if isinstance(value, str) else "a str, the dotted path of a Python object"


def _token(value: Any) -> str | None:
    if isinstance(value, str) and len(value) >= MIN_TOKEN and value.isascii() and _is_written_out(value):
        return None
    return f"a str of {MIN_TOKEN} or more ASCII characters without spaces"


def _layout(value: Any) -> str | None:
    return None if isinstance(value, str) else "'auto', 'admin', 'standalone' or the name of a template"


def _checksum(value: Any) -> str | None:
    return None if value in ("crc32", "sha256", None) else "'crc32', 'sha256' or None"


def _hosts(value: Any) -> str | None:
    form = 'a list of hosts such as "example.com", of domains such as ".example.com", and of "*"'
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        wrong = next((one for one in value if not _HOST.fullmatch(one)), None)
        return None if wrong is None else f"{form} ({wrong!r} is none of these)"
    return form


def _proxies(value: Any) -> str | None:
    form = f'a list of addresses, of networks such as "10.0.0.0/8", and of "{conf.UNIX}"'
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        return form
    try:
        for entry in value:
            if entry != conf.UNIX:
                conf.proxy_network(entry)
    except ValueError as error:
        return f"{form} ({error})"
    return None


def _is_written_out(url: str) -> bool:
    """Whether it has no spaces and control characters."""
    return url.isprintable() and " " not in url


def _base_url(value: Any) -> str | None:
    form = 'the beginning of absolute URLs, such as "https://example.com"'
    if not isinstance(value, str):
        return form
    try:
        parts = urlsplit(value)
        is_absolute = parts.scheme in ("http", "https") and bool(parts.hostname) and _is_written_out(value)
        _ = parts.port
    except ValueError:
        return form
    is_valid = not value or (is_absolute and not parts.query and not parts.fragment)
    return None if is_valid else form


def _of_middleware(value: Any) -> str | None:
    """The middleware checks its rules itself, since they are those of a layer above."""
    return None


_rate = _integer(most=MAX_RATE)
RULES: Mapping[str, Rule] = {
    "ALIAS": _optional(_alias),
    "PREFIX": _prefix,
    "COMMAND_DEADLINE": _seconds,
    "WEB_DEADLINE": _seconds,
    "REQUEST_WINDOW": _whole_seconds,
    "DURABILITY": _optional(_durability),
    "TEST": _test,
    "OBSERVE": _optional(_path),
    "METRICS_TOKEN": _optional(_token),
    "CHAT_KEEP_LAST": _integer(least=0),
    "CHAT_MAX_LENGTH": _integer(),
    "CHAT_MAX_BYTES": _integer(),
    "CHAT_MAX_AGE": _optional(_seconds),
    "CHAT_MAX_MEMBERS": _integer(most=10_000),
    "USER_MAX_CHATS": _integer(),
    "USER_MAX_BLOCKS": _integer(),
    "MESSAGE_MAX_BYTES": _integer(),
    "TITLE_MAX_BYTES": _integer(),
    "TYPING_WINDOW": _seconds,
    "TYPING_MAX_MEMBERS": _integer(least=0),
    "DIRECTORY_MAX_ENTRIES": _integer(),
    "LABEL_MAX_BYTES": _integer(),
    "JOB_MAX_ATTEMPTS": _integer(most=MAX_ATTEMPTS),
    "JOB_MAX_LOST": _integer(most=MAX_ATTEMPTS),
    "JOB_MAX_WAITING": _integer(),
    "JOB_MAX_BYTES": _integer(),
    "JOB_MAX_DEAD": _integer(),
    "JOB_DEAD_TTL": _seconds,
    "JOB_BACKOFF": _seconds,
    "JOB_BACKOFF_MAX": _seconds,
    "MAILBOX_MAX_LENGTH": _integer(),
    "MAILBOX_MAX_AGE": _optional(_seconds),
    "MAIL_MAX_BYTES": _integer(),
    "LINK_HOSTS": _hosts,
    "BROADCAST_RETENTION": _seconds,
    "BROADCAST_BUCKET": _seconds,
    "BROADCAST_MAX_LENGTH": _integer(),
    "BROADCAST_MAX_BYTES": _integer(),
    "FILES_BLOCK_BYTES": _integer(most=MAX_BLOCK_BYTES),
    "FILES_CHECKSUM": _checksum,
    "FILES_MAX_WAITING": _integer(),
    "FILES_MAX_CONSUMERS": _integer(),
    "FILES_MAX_LINE_BYTES": _integer(most=MAX_LINE_BYTES),
    "FILES_MAX_RATIO": _integer(),
    "FILES_MAX_OUTPUT_BYTES": _integer(),
    "AGGREGATE_TTL": _seconds,
    "AGGREGATE_MAX_KEYS": _integer(),
    "AGGREGATE_MAX_PERIODS": _integer(),
    "HISTORY_MAX_SERIES": _integer(least=0),
    "IDENTITY": _path,
    "CONSOLE": _path,
    "LAYOUT": _layout,
    "FOLLOW_USERS": _bool,
    "SEND_RATE": _rate,
    "EDIT_RATE": _rate,
    "CREATE_RATE": _rate,
    "INVITE_RATE": _rate,
    "SEARCH_RATE": _rate,
    "RENAME_RATE": _rate,
    "CHANGE_RATE": _rate,
    "RATES_IN_SERVICES": _bool,
    "RATE_LIMITS": _of_middleware,
    "TRUSTED_PROXIES": _proxies,
    "LIVE": _bool,
    "LIVE_MAX_STREAMS": _integer(),
    "LIVE_MAX_PER_PROCESS": _integer(),
    "LIVE_LIFETIME": _seconds,
    "PRESENCE_MAX_MEMBERS": _integer(least=0),
    "READ_RECEIPTS": _bool,
    "DIGEST_AFTER": _seconds,
    "DIGEST_BASE_URL": _base_url,
}


def check_settings(**_: object) -> list[CheckMessage]:
    """Check the type, keys and values of REDIS_MESSAGING."""
    given = getattr(settings, conf.NAME, {})
    if not isinstance(given, dict):
        return [
            Error(
                f"{conf.NAME} must be a dict, not {type(given).__name__}.",
                hint=f'Write {conf.NAME} = {{"CHAT_MAX_LENGTH": 5000}}, or remove it.',
                id="messaging.E001",
            )
        ]
    found = (
        _check_value(key, value) if key in RULES else _check_unknown(key) for key, value in given.items()
    )
    return [message for message in found if message is not None]


def _check_unknown(key: object) -> CheckMessage:
    near = difflib.get_close_matches(str(key).upper(), RULES, n=1)
    return Warning(
        f"{conf.NAME} has the unknown key {key!r}, which has no effect.",
        hint=f"Did you mean {near[0]!r}?" if near else "All keys: docs/settings.md.",
        id="messaging.W001",
    )


def _check_value(key: str, value: object) -> CheckMessage | None:
    expected = RULES[key](value)
    if expected is not None:
        given = "" if key in SECRETS else f", not {value!r}"
        return Error(
            f"{conf.NAME}[{key!r}] must be {expected}{given}.",
            hint=f"Correct it, or remove it: its default is {getattr(conf.Settings, key)!r}.",
            id="messaging.E002",
        )
    if key not in PATHS or value is None:
        return None
    problem = _path_problem(key, str(value))
    if problem is None:
        return None
    return Error(f"{conf.NAME}[{key!r}]: {value!r} {problem}.", hint=PATHS[key], id="messaging.E003")


#: settings that are dotted paths of Python objects, with what to do if such an object can't be used
PATHS = {
    "OBSERVE": 'Use the dotted path of a function such as "shop.metrics.observe", which is defined as '
    "def observe(operation, seconds, outcome).",
    "IDENTITY": 'Use the dotted path of a class such as "shop.chat.Identity", which is derived from '
    f"{BASES['IDENTITY']} and needs no arguments.",
    "CONSOLE": 'Use the dotted path of a class such as "shop.operators.Operators", which is derived from '
    f"{BASES['CONSOLE']} and needs no arguments.",
}


def _path_problem(key: str, path: str) -> str | None:
    try:
        named = import_string(path)
    except Exception as error:
        return f"can't be imported ({type(error).__name__}: {error})"
    if not callable(named):
        return "is neither a class nor a function"
    if base := BASES.get(key):
        if not is_kind_of(named, base):
            return f"is not a subclass of {base.rpartition('.')[2]}"
        return None if _accepts(named, 0) else "needs arguments"
    if operations.is_async_observer(named):
        return "is an async function"
    return None if _accepts(named, 3) else "doesn't accept three arguments"
