"""Notifications: mail of a known form, which the bell and the pages show."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from django.conf import settings
from django.utils.encoding import iri_to_uri
from django.utils.http import is_same_domain, url_has_allowed_host_and_scheme

from .. import conf
from ..core import payloads
from .mailboxes import Mailbox
from .mails import Mail

Level = Literal["info", "success", "warning", "error"]
LEVELS: tuple[Level, ...] = get_args(Level)
#: hosts of a site in development, as Django has them
_LOCAL_HOSTS = (".localhost", "127.0.0.1", "[::1]")
#: characters of an address, percent-encoded: Django redirects nobody to longer ones
_LONGEST = 2000
#: what browsers drop or read as something else: it could hide a scheme
_UNFIT = re.compile(r"[\x00-\x20\x7f-\x9f\\]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Notification:
    """What a mail of `notify` says."""

    text: str
    url: str
    level: Level


def notify(
    user: str,
    text: str,
    *,
    url: str = "",
    level: Level = "info",
    group: str | None = None,
    sender: str | None = None,
    request_id: str | None = None,
    using: str | None = None,
) -> Mail:
    """Tell a user something: a mail that the bell counts and the page of notifications shows.

    `text` is plain text; `url` where it leads: an address of this site, or one whose host is in LINK_HOSTS.
    `level` is "info", "success", "warning" or "error". `group` is that of Mailbox.send: only the newest is
    shown, with how many there were.

    >>> notify("notify-example", "Your file is ready.", url="/files/7/", level="success").payload
    {'text': 'Your file is ready.', 'url': '/files/7/', 'level': 'success'}

    Raises ValueError for other levels and other addresses (https://elsewhere.example/, javascript:),
    LimitExceeded (MAIL_MAX_BYTES).
    """
    mailbox = Mailbox(user, using=using)
    return mailbox.send(_payload(text, url, level), sender=sender, group=group, request_id=request_id)


async def anotify(
    user: str,
    text: str,
    *,
    url: str = "",
    level: Level = "info",
    group: str | None = None,
    sender: str | None = None,
    request_id: str | None = None,
    using: str | None = None,
) -> Mail:
    """`notify`, awaiting."""
    mailbox = Mailbox(user, using=using)
    return await mailbox.asend(_payload(text, url, level), sender=sender, group=group, request_id=request_id)


def _payload(text: str, url: str, level: str) -> dict[str, str]:
    if not payloads.text(text, "text").strip():
        raise ValueError("text is empty: say something.")
    if level not in LEVELS:
        raise ValueError(f"level is {level!r}: it can be {', '.join(map(repr, LEVELS))}.")
    return {"text": text, "url": checked_url(url), "level": level}


def checked_url(url: str) -> str:
    """An address that a notification may lead to, or none: else ValueError.

    Of this site are addresses without a host, and those of ALLOWED_HOSTS, unless that allows any.
    """
    unfit = _UNFIT.search(payloads.text(url, "url"))
    if unfit:
        raise ValueError(f"url has {unfit[0]!r}: percent-encode it.")
    length = len(iri_to_uri(url))
    if length > _LONGEST:
        raise ValueError(f"url has {length} characters, percent-encoded: {_LONGEST} is the most.")
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError as error:
        raise ValueError(f"url is no address: {error}.") from None
    hosts = {parts.netloc} if _is_allowed(f"[{host}]" if ":" in host else host) else set()
    if url and not url_has_allowed_host_and_scheme(url, hosts):
        raise ValueError(
            "url is no address of this site: give one as reverse() returns it, or add its host to "
            "REDIS_MESSAGING['LINK_HOSTS']."
        )
    return url


def _is_allowed(host: str) -> bool:
    """Whether links may have this host. That any host may reach the site doesn't make them its own."""
    local = _LOCAL_HOSTS if settings.DEBUG and not settings.ALLOWED_HOSTS else ()
    own = (pattern for pattern in settings.ALLOWED_HOSTS if pattern != "*")
    patterns = (*own, *local, *conf.current().LINK_HOSTS)
    return any(pattern == "*" or is_same_domain(host, pattern) for pattern in patterns)


def notification(payload: Any) -> Notification:
    """What a payload says, whoever sent it: what is no notification is shown as text without a link."""
    if not isinstance(payload, dict):
        return Notification(text=_as_text(payload), url="", level="info")
    level, url = payload.get("level"), payload.get("url", "")
    try:
        checked = checked_url(url)
    except (TypeError, ValueError):
        checked = ""
    return Notification(
        text=_as_text(payload.get("text", payload)), url=checked, level=level if level in LEVELS else "info"
    )


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else payloads.dumps(value)
