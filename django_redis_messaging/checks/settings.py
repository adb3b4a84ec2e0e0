"""Checks of what the site has configured: REDIS_MESSAGING, CACHES, handlers, the pages. They send nothing."""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.shortcuts import resolve_url
from django.urls import NoReverseMatch, get_script_prefix, is_valid_path, reverse
from django.utils.module_loading import import_string
from django.utils.translation import get_language
from redis.connection import SSLConnection

from .. import conf, handlers
from ..core import encoding, outcome, testruns
from ..core.connection import Target
from ..core.testruns import BACKEND, Entry, connections, databases, is_kind_of, mapping, urls_of
from ..core.topology import endpoint
from ..errors import ConfigurationError, MessagingError

#: numbers that may be 0; the others must be greater than 0
MAY_BE_ZERO = {"CHAT_KEEP_LAST", "PRESENCE_MAX_MEMBERS", "TYPING_MAX_MEMBERS"}
#: the largest number that a setting may be
MAXIMA = {"CHAT_MAX_MEMBERS": 10_000}
#: settings that are dotted paths of Python objects
PATHS = {"OBSERVE", "IDENTITY"}
#: seconds; an attempt that exceeds the alias's socket timeout is repeated
MIN_SOCKET_TIMEOUT = 1.0
#: number of databases of a Redis server by default
DATABASES = 16
#: middleware of Django that the pages rely on, with what is missing without it
MIDDLEWARE = {
    "django.middleware.security.SecurityMiddleware": "headers against sniffing and referrers, and HTTPS",
    "django.middleware.csrf.CsrfViewMiddleware": "other sites could post forms for a user who is signed in",
    "django.middleware.clickjacking.XFrameOptionsMiddleware": "other sites could show the pages in a frame",
}
#: how messages name the types of settings
_TYPE_NAMES: dict[Any, str] = {
    bool: "True or False",
    int: "an integer",
    float: "a number",
    str: "a str",
    types.NoneType: "None",
    Sequence: "a list of str",
    Mapping: outcome.DURABILITY_FORM,
    Callable: "a callable",
}


def check_settings(**_: object) -> list[CheckMessage]:
    """Check the type, keys and values of REDIS_MESSAGING.

    The valid types follow from the annotations of `conf.Settings`, so a new setting needs no change here.
    """
    given = getattr(settings, conf.NAME, {})
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
        return None if testruns.is_valid_test(value) else testruns.TEST_FORM
    if key == "RATE_LIMITS":
        return None  # middleware.py checks it
    if not _has_kind(value, kinds):
        return " or ".join(_TYPE_NAMES[kind] for kind in kinds)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _expected_number(key, value)
    if key == "TRUSTED_PROXIES" and isinstance(value, list | tuple):
        return _expected_proxies(value)
    return _expected_prefix(value) if key == "PREFIX" and isinstance(value, str) else None


def _has_kind(value: object, kinds: list[Any]) -> bool:
    if isinstance(value, bool):
        return bool in kinds  # a bool is an int, too
    if isinstance(value, Mapping):
        return Mapping in kinds and outcome.is_valid_durability(value)
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
        encoding.checked_prefix(value)
    except ValueError as error:
        return f"a valid beginning of keys ({error})"
    return None


def _expected_proxies(value: Sequence[str]) -> str | None:
    try:
        for entry in value:
            if entry != conf.UNIX:
                conf.proxy_network(entry)
    except ValueError as error:
        return f"a list of addresses, of networks such as '10.0.0.0/8', and of {conf.UNIX!r} ({error})"
    return None


def check_alias(**_: object) -> list[CheckMessage]:
    """Check that the alias exists, uses django-redis without sharding, and has its own database."""
    alias = _chosen_alias()
    if alias is None:
        return []
    caches: Mapping[str, object] = settings.CACHES
    if alias not in caches:
        return [_missing_entry(alias)]
    entry = mapping(caches[alias])
    unusable = _check_backend(alias, entry) or _check_client(alias, entry)
    if unusable:
        return [unusable]
    found = (_check_default(alias), _check_sharing(alias), _check_timeout(alias, entry))
    return [message for message in found if message is not None]


def usable_alias() -> str | None:
    """The alias in use; None if the app can't use it, which check_alias or check_settings reports."""
    found = check_alias()
    return None if any(message.is_serious() for message in found) else _chosen_alias()


def _chosen_alias() -> str | None:
    """The alias in use; None if the settings are invalid, which check_settings reports."""
    try:
        alias = conf.alias()
    except ConfigurationError:
        return None
    return alias if isinstance(alias, str) else None


def _missing_entry(alias: str) -> CheckMessage:
    return Error(
        f"CACHES has no entry {alias!r}, which {conf.NAME} names as its ALIAS.",
        hint=f"Add it to CACHES:\n{entry_to_paste(alias)}",
        id="messaging.E004",
    )


def _check_backend(alias: str, entry: Entry) -> CheckMessage | None:
    backend = entry.get("BACKEND", "")
    if is_kind_of(backend, BACKEND):
        return None
    return Error(
        f"CACHES[{alias!r}] has the backend {backend!r}; this app needs django-redis.",
        hint=f"Keep that cache, and add to CACHES:\n{entry_to_paste('messaging')}",
        id="messaging.E005",
    )


def _check_client(alias: str, entry: Entry) -> CheckMessage | None:
    client = mapping(entry.get("OPTIONS")).get("CLIENT_CLASS", "")
    if not is_kind_of(client, "django_redis.client.sharded.ShardClient"):
        return None
    return Error(
        f"CACHES[{alias!r}] distributes its keys over several servers ({client}); "
        "all keys of a chat must be on one server.",
        hint=f"Use one server, Sentinel or a Redis Cluster. Add to CACHES:\n{entry_to_paste('messaging')}",
        id="messaging.E006",
    )


def _check_default(alias: str) -> CheckMessage | None:
    if alias != "default" or conf.current().ALIAS is not None:
        return None
    return Warning(
        "Chats are stored in the database of the default cache: cache.clear() empties that database, "
        "and would delete them.",
        hint=f"Use a separate database; add to CACHES:\n{entry_to_paste('messaging')}",
        id="messaging.W002",
    )


def _check_sharing(alias: str) -> CheckMessage | None:
    caches: Mapping[str, object] = settings.CACHES
    ours = set(databases(caches[alias]))
    others = [other for other in caches if other != alias and ours & set(databases(caches[other]))]
    if not others:
        return None
    return Warning(
        f"CACHES[{alias!r}] uses the same Redis database as {', '.join(map(repr, others))}: "
        "clear() of either cache would delete the chats.",
        hint=f"Use a separate database:\n{entry_to_paste(alias)}",
        id="messaging.W003",
    )


def _check_timeout(alias: str, entry: Entry) -> CheckMessage | None:
    limits = [options.get("socket_timeout") for options in connections(entry)]
    short = [limit for limit in limits if isinstance(limit, int | float) and limit < MIN_SOCKET_TIMEOUT]
    if not short:
        return None
    return Warning(
        f"CACHES[{alias!r}] has a socket timeout of {min(short):g} s: on a busy server, every slow reply "
        "causes a repeated request.",
        hint="Set its SOCKET_TIMEOUT to a few seconds, such as 5, or remove it.",
        id="messaging.W004",
    )


def entry_to_paste(alias: str) -> str:
    """A CACHES entry for the server of the default cache, with a database that no cache uses."""
    return f'    "{alias}": {{"BACKEND": "{BACKEND}", "LOCATION": "{_free_location()}"}},'


def _free_location() -> str:
    caches: Mapping[str, object] = settings.CACHES
    used = {number for entry in caches.values() for _, _, number in databases(entry)} | {0}
    number = next((free for free in range(DATABASES) if free not in used), DATABASES)
    urls = [url for entry in caches.values() for url, _ in urls_of(entry)]
    parts = urlsplit(urls[0] if urls else "redis://127.0.0.1:6379")
    if parts.scheme == "unix":
        return f"unix://{parts.path}?db={number}"
    # The password must not be printed.
    user, at, host = parts.netloc.rpartition("@")
    return f"{parts.scheme}://{user.partition(':')[0] + ':...@' if at else ''}{host}/{number}"


def check_handlers(**_: object) -> list[CheckMessage]:
    """Import `expiries.py` of all apps and check their handlers."""
    try:
        handlers.discover()
    except ConfigurationError as error:
        return [Error(str(error), id="messaging.E009")]
    return [message for one in handlers.key_events for message in _check_handler(one)]


def _check_handler(one: handlers.KeyHandler) -> Iterator[CheckMessage]:
    ours = f"{_prefix()}:{encoding.FORMAT}:{{"
    if handlers.literal_prefix(one.pattern).startswith(ours):
        yield Warning(
            f"{handlers.title(one.function)} is never called: its pattern {one.pattern!r} matches this app's "
            "own keys, whose events are not delivered.",
            hint="Use on_expiry for timers, or a pattern of the site's own keys.",
            id="messaging.W009",
        )
    for event in sorted(one.events - handlers.FLAGS.keys()):
        near = difflib.get_close_matches(event, handlers.FLAGS, n=1)
        yield Warning(
            f"{handlers.title(one.function)} waits for the event {event!r}, which Redis doesn't publish. "
            "A Redis module may publish it; its flags are not checked.",
            hint=f"Did you mean {near[0]!r}?" if near else "See the table of events in docs/expiry.md.",
            id="messaging.W010",
        )


def _prefix() -> object:
    try:
        return conf.prefix()
    except ConfigurationError:  # another check reports it
        return None


def has_pages() -> bool:
    """Whether the site includes the pages of this app."""
    if not hasattr(settings, "ROOT_URLCONF"):  # a process of a site without pages
        return False
    try:
        return bool(reverse("messaging:chats"))
    except NoReverseMatch:
        return False


def check_login_url(**_: object) -> list[CheckMessage]:
    """Check that LOGIN_URL leads to a page, if the site includes the pages of this app."""
    if not has_pages():
        return []
    try:
        login_url = str(settings.LOGIN_URL)
    except NoReverseMatch as error:  # of reverse_lazy()
        login_url, exists = str(error), False
    else:
        exists = _leads_somewhere(login_url)
    if exists:
        return []
    return [
        Warning(
            f"LOGIN_URL is {login_url!r}, which is no page of this site: whoever opens the messages "
            "without being signed in gets a 404.",
            hint='Set it to the page or the name of a URL where people sign in, such as "admin:login".',
            id="messaging.W017",
        )
    ]


def _leads_somewhere(login_url: str) -> bool:
    """Whether an address or the name of a URL leads to a view, or to another site."""
    address = urlsplit(resolve_url(login_url) if "/" in login_url else _reversed(login_url))
    path = "/" + address.path.removeprefix(get_script_prefix())
    # LocaleMiddleware and CommonMiddleware redirect to these
    language = get_language() or settings.LANGUAGE_CODE
    paths = [path, f"/{language}{path}", f"{path}/", f"/{language}{path}/"]
    return bool(address.netloc) or any(is_valid_path(each) for each in paths)


def _reversed(name: str) -> str:
    try:
        return reverse(name)
    except NoReverseMatch:
        return "/" + name


def check_middleware(**_: object) -> list[CheckMessage]:
    """Check that the middleware that protects the pages is installed, if the pages are."""
    installed = settings.MIDDLEWARE or []
    missing = [one for one in MIDDLEWARE if not any(is_kind_of(path, one) for path in installed)]
    if not missing or not has_pages():
        return []
    effects = "; ".join(f"{path.rpartition('.')[2]} ({MIDDLEWARE[path]})" for path in missing)
    lines = "".join(f'\n    "{path}",' for path in missing)
    return [
        Warning(
            f"The site has the pages of this app, but MIDDLEWARE lacks {effects}.",
            hint=f"Add to MIDDLEWARE:{lines}",
            id="messaging.W014",
        )
    ]


def check_transport(**_: object) -> list[CheckMessage]:
    """Check that a Redis on another machine is reached by TLS and asks for a password."""
    alias = usable_alias()
    if alias is None:
        return []
    try:
        targets = list(endpoint(alias).configured())
    except MessagingError:
        return []  # another check reports it
    remote = [target for target in targets if _is_remote(target)]
    found = (
        _without_tls(alias, _names(remote, lambda target: not _has_tls(target))),
        _without_password(alias, _names(remote, lambda target: not _has_password(target))),
    )
    return [message for message in found if message is not None]


def _without_tls(alias: str, names: str) -> CheckMessage | None:
    if not names:
        return None
    return Warning(
        f"CACHES[{alias!r}] connects to {names} without TLS: whoever can read this network can read and "
        "change all messages.",
        hint="Write rediss:// instead of redis:// in LOCATION. With Sentinels, add to OPTIONS: "
        '"CONNECTION_POOL_KWARGS": {"ssl": True}, "SENTINEL_KWARGS": {"ssl": True}. See docs/security.md.',
        id="messaging.W015",
    )


def _without_password(alias: str, names: str) -> CheckMessage | None:
    if not names:
        return None
    return Warning(
        f"CACHES[{alias!r}] connects to {names} without a password: whoever can reach it can read and delete "
        "all messages.",
        hint="Create a user with the ACL line of docs/security.md, and write its name and password into "
        "LOCATION: rediss://messaging:…@host:6379/1. With Sentinels, give them a password too: "
        '"SENTINEL_KWARGS": {"password": "…"} in OPTIONS.',
        id="messaging.W016",
    )


def _names(targets: list[Target], is_affected: Callable[[Target], bool]) -> str:
    return ", ".join(_name(target.parameters) for target in targets if is_affected(target))


def _name(parameters: dict[str, Any]) -> str:
    return f"{parameters['host']}:{parameters.get('port', 6379)}"


def _is_remote(target: Target) -> bool:
    """Whether it is on another machine. The host of a primary behind Sentinels is the name of the service."""
    if target.parameters.get("path"):
        return False
    host = str(target.parameters.get("host", "localhost"))
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"


def _has_tls(target: Target) -> bool:
    return issubclass(target.kind, SSLConnection)


def _has_password(target: Target) -> bool:
    return bool(target.parameters.get("password") or target.parameters.get("credential_provider"))


def begin_run(**_: object) -> list[CheckMessage]:
    """Report nothing. `manage.py test` runs the checks before the tests: begin their run, so that processes
    that they start take part in it."""
    testruns.notice()
    return []


def check_variable(**_: object) -> list[CheckMessage]:
    """Check that no run of tests has started this process."""
    run = testruns.current()
    if run is None or run.is_own:
        return []
    return [
        Warning(
            f"The environment variable {testruns.VARIABLE} is set: this process uses the server or the "
            "prefix of a run of tests, not those of the site.",
            hint="Unset it. Only runs of tests set it, for processes that they start.",
            id="messaging.W022",
        )
    ]
