"""The app's settings: one dict, `REDIS_MESSAGING`, read on first use and again after a change.

REDIS_MESSAGING = {"ALIAS": "messaging", "CHAT_MAX_LENGTH": 5000}
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any, TypeVar

from django.conf import settings as django_settings
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from .errors import ConfigurationError

T = TypeVar("T")

NAME = "REDIS_MESSAGING"
#: the entry of TRUSTED_PROXIES for a proxy that connects through a Unix socket
UNIX = "unix"
#: maps each PREFIX that the settings say to the one in use, another one in tests; core/testruns.py sets it
prefix_hook: Callable[[str], str] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings and their defaults. Durations are in seconds, sizes in bytes of UTF-8."""

    #: the CACHES alias of the Redis to use; None: "messaging" if CACHES has it, else "default"
    ALIAS: str | None = None
    #: beginning of every key; a callable is called for each new object (one prefix for each tenant)
    PREFIX: str | Callable[[], str] = "messaging"
    #: how long an operation is retried before Unavailable or OutcomeUnknown is raised
    COMMAND_DEADLINE: float = 10.0
    #: how long the operations of one page may take together; with DeadlineMiddleware, those of any request
    WEB_DEADLINE: float = 2.0
    #: minimum time for which a request id is remembered
    REQUEST_WINDOW: int = 120
    #: {"replicas": n, "timeout": seconds}: how many replicas must confirm each write within this time, or
    #: OutcomeUnknown is raised; None: none
    DURABILITY: Mapping[str, float] | None = None
    #: {"SERVER": "private"}: tests use a server that is started for them; {"SERVER": "configured"}: those of
    #: CACHES, with a prefix of their own; None: private
    TEST: Mapping[str, str] | None = None
    #: dotted path of a callable (operation, seconds, outcome), called after each operation
    OBSERVE: str | None = None
    #: the bearer token with which `metrics/` may be read; None: nobody may, it answers 404
    METRICS_TOKEN: str | None = None

    #: messages kept as history after every member has acked them; 0: removed when all have read them
    CHAT_KEEP_LAST: int = 1000
    #: maximum number of messages in a chat, read or unread
    CHAT_MAX_LENGTH: int = 10_000
    #: maximum size of a chat's messages, read or unread; each counts as the largest that it ever was
    CHAT_MAX_BYTES: int = 16 * 1024 * 1024
    #: age at which a message is removed, read or unread; None: never
    CHAT_MAX_AGE: float | None = None
    #: maximum number of members of a chat; at most 10,000
    CHAT_MAX_MEMBERS: int = 1000
    #: maximum number of chats a user is a member of; others can fill nine tenths of it
    USER_MAX_CHATS: int = 5000
    #: maximum number of people whom a user has blocked
    USER_MAX_BLOCKS: int = 1000
    #: maximum size of a message: body and data together
    MESSAGE_MAX_BYTES: int = 64 * 1024
    #: maximum size of a chat's title
    TITLE_MAX_BYTES: int = 512
    #: how long a member is shown as typing after the last keystroke
    TYPING_WINDOW: float = 6.0
    #: chats with more members than this don't track typing
    TYPING_MAX_MEMBERS: int = 100

    #: maximum number of entries in a directory: one for each word of each label and alias
    DIRECTORY_MAX_ENTRIES: int = 5_000_000
    #: maximum size of a contact's label, and of each alias
    LABEL_MAX_BYTES: int = 255

    #: maximum attempts of a job, unless its queue or task sets another; then it is moved to dead letters
    JOB_MAX_ATTEMPTS: int = 5
    #: maximum attempts of a task or timer whose worker was lost; then it is moved to dead letters
    JOB_MAX_LOST: int = 5
    #: maximum number of waiting jobs in a queue: ready, delayed and parked together
    JOB_MAX_WAITING: int = 10_000_000
    #: maximum size of a job's payload, of a task's arguments, and of its return value
    JOB_MAX_BYTES: int = 512 * 1024
    #: maximum number of dead jobs in a queue; the oldest are removed first
    JOB_MAX_DEAD: int = 10_000
    #: how long a dead job is kept
    JOB_DEAD_TTL: float = 14 * 86_400.0

    #: maximum pause before the second attempt of a failed job; doubled for each further attempt
    JOB_BACKOFF: float = 1.0
    #: maximum pause between any two attempts
    JOB_BACKOFF_MAX: float = 3600.0

    #: maximum number of mails in a mailbox, read or unread; the oldest are removed first
    MAILBOX_MAX_LENGTH: int = 1000
    #: age at which a mail is removed, read or unread; None: never
    MAILBOX_MAX_AGE: float | None = 90 * 86_400.0
    #: maximum size of a mail's payload
    MAIL_MAX_BYTES: int = 64 * 1024
    #: hosts that notifications may link to besides ALLOWED_HOSTS, in the same form; "*": any
    LINK_HOSTS: Sequence[str] = ()

    #: minimum time for which an event of a broadcast is kept; at most one bucket longer
    BROADCAST_RETENTION: float = 300.0
    #: duration of a bucket; the events that are published within it expire together
    BROADCAST_BUCKET: float = 10.0
    #: maximum number of events in a channel; the oldest are removed first
    BROADCAST_MAX_LENGTH: int = 100_000
    #: maximum size of an event's payload
    BROADCAST_MAX_BYTES: int = 64 * 1024

    #: size of the blocks in which files are stored
    FILES_BLOCK_BYTES: int = 1024 * 1024
    #: checksum by which a consumer verifies a file: "crc32", "sha256", or None
    FILES_CHECKSUM: str | None = "crc32"
    #: maximum number of files of a channel that a consumer has not acked; publishing waits at this number
    FILES_MAX_WAITING: int = 10_000
    #: maximum number of consumers of a file channel
    FILES_MAX_CONSUMERS: int = 100
    #: maximum size of a line
    FILES_MAX_LINE_BYTES: int = 1024 * 1024
    #: maximum ratio of the sizes of a file after and before decompression, checked after the first MiB
    FILES_MAX_RATIO: int = 200
    #: maximum size of a file after decompression
    FILES_MAX_OUTPUT_BYTES: int = 16 * 1024**3

    #: how long the counts of a period are kept after the last count
    AGGREGATE_TTL: float = 400 * 86_400.0
    #: maximum number of keys that an aggregate counts in a period; further keys are counted together
    AGGREGATE_MAX_KEYS: int = 100_000
    #: maximum number of periods of an aggregate
    AGGREGATE_MAX_PERIODS: int = 10_000

    #: maximum number of queues, tasks, namespaces of timers and servers of which a history is kept; 0: none
    HISTORY_MAX_SERIES: int = 500

    #: dotted path of the class that maps users to chat members: see web/identity.py
    IDENTITY: str = "django_redis_messaging.web.identity.Identity"
    #: dotted path of the class that says who may use the console: see console/access.py
    CONSOLE: str = "django_redis_messaging.console.access.Console"
    #: layout of pages: "admin", "standalone", "auto" (the admin's if it is installed, else standalone), or
    #: the name of a template of the site with a block "content"
    LAYOUT: str = "auto"
    #: whether saving a user updates the directories, and deleting one calls forget()
    FOLLOW_USERS: bool = False
    #: maximum number of messages that a user sends in a minute, like the other rates through the pages
    SEND_RATE: int = 60
    #: maximum number of messages that a user edits or deletes in a minute
    EDIT_RATE: int = 60
    #: maximum number of chats that a user creates in an hour
    CREATE_RATE: int = 60
    #: maximum number of people whom a user adds to chats in an hour, also by creating chats
    INVITE_RATE: int = 300
    #: maximum number of searches for people by a user in a minute
    SEARCH_RATE: int = 120
    #: maximum number of chat titles that a user changes in an hour
    RENAME_RATE: int = 60
    #: maximum number of other changes by a user in a minute (roles, muting, choices); also of typing reports
    CHANGE_RATE: int = 60
    #: whether the services count these uses, except searches and other changes, instead of the pages
    RATES_IN_SERVICES: bool = False
    #: limits of RateLimitMiddleware: [{"rate": "100/m", "path": "/api/", …}], see docs/rate-limits.md
    RATE_LIMITS: Sequence[Mapping[str, Any]] = ()
    #: addresses or networks of the proxies whose X-Forwarded-For counts, such as "10.0.0.0/8"; "unix": what
    #: connects through a Unix socket
    TRUSTED_PROXIES: Sequence[str] = ()
    #: whether the pages get changes pushed, under ASGI; otherwise they poll
    LIVE: bool = True
    #: maximum number of live streams of a user, in all processes
    LIVE_MAX_STREAMS: int = 8
    #: maximum number of live streams in one process; others poll
    LIVE_MAX_PER_PROCESS: int = 5000
    #: how long a live stream lasts before the client reconnects; up to a fifth shorter, at random
    LIVE_LIFETIME: float = 600.0
    #: chats with more members than this don't show who is online; 0: none does
    PRESENCE_MAX_MEMBERS: int = 50
    #: whether members see what the others have read, unless these have chosen otherwise
    READ_RECEIPTS: bool = True
    #: how long a message must have been unread before a digest contains it
    DIGEST_AFTER: float = 3600.0
    #: beginning of the links in digests, such as "https://example.com"
    DIGEST_BASE_URL: str = ""


@functools.cache
def current() -> Settings:
    """The current settings. Unknown keys are ignored here; a system check reports them."""
    given = configured()
    known = {field.name for field in dataclasses.fields(Settings)}
    return Settings(**{key: value for key, value in given.items() if key in known})


def configured() -> dict[str, Any]:
    """The dict as written in the site's settings."""
    given = getattr(django_settings, NAME, {})
    if not isinstance(given, dict):
        raise ConfigurationError(f"{NAME} must be a dict, not {type(given).__name__}.")
    return given


def alias() -> str:
    """The default CACHES alias."""
    chosen = current().ALIAS
    if chosen is not None:
        return chosen
    return "messaging" if "messaging" in django_settings.CACHES else "default"


def prefix() -> str:
    """The beginning of every key, for an object that is created now."""
    chosen = current().PREFIX
    configured = chosen() if callable(chosen) else chosen
    return configured if prefix_hook is None else prefix_hook(configured)


def proxy_network(entry: str) -> IPv4Network | IPv6Network:
    """An entry of TRUSTED_PROXIES as a network. Raises ValueError."""
    network = ip_network(entry, strict=False)
    if network.prefixlen == 0:
        raise ValueError(f"{entry!r} contains all addresses, so that each client could choose its own")
    return network


def instance(name: str, base: type[T]) -> T:
    """An instance of the class whose dotted path the setting `name` is, such as IDENTITY. Raises
    ConfigurationError if that is not a subclass of `base` that needs no arguments."""
    path = getattr(current(), name)
    try:
        found = import_string(path)()
    except (ImportError, TypeError) as error:
        raise ConfigurationError(
            f'{NAME}["{name}"] is {path!r}, which could not be loaded: {error}. '
            f"Set it to the dotted path of a subclass of {base.__module__}.{base.__qualname__}."
        ) from error
    if not isinstance(found, base):
        raise ConfigurationError(f'{NAME}["{name}"] is {path!r}, which is not a subclass of {base.__name__}.')
    return found


#: what forgets the results of the functions that have `cached`
_clear_caches: list[Callable[[], None]] = []


def cached(function: Callable[[], T]) -> Callable[[], T]:
    """Call a function once, and again after a change of the settings."""
    kept = functools.cache(function)
    _clear_caches.append(kept.cache_clear)
    return kept


def _reset(*, setting: str, **_: object) -> None:
    if setting in {NAME, "CACHES"}:
        current.cache_clear()
    if setting in {NAME, "AUTH_USER_MODEL"}:  # an instance may keep the model
        for clear in _clear_caches:
            clear()


setting_changed.connect(_reset, dispatch_uid="django_redis_messaging.conf")
