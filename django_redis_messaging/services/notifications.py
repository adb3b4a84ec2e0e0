"""Notifications: mail of a known form, which the bell and the pages show."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from ..core import payloads
from .mailboxes import Mailbox
from .mails import Mail

Level = Literal["info", "success", "warning", "error"]
LEVELS: tuple[Level, ...] = get_args(Level)
#: schemes that a link may have; none: an address of this site
_SCHEMES = {"", "http", "https", "mailto"}
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

    `text` is plain text; `url` where it leads: an address of this site, http, https or mailto. `level` is
    "info", "success", "warning" or "error". `group` is that of Mailbox.send: only the newest is shown, with
    how many there were.

    >>> notify("notify-example", "Your file is ready.", url="/files/7/", level="success").payload
    {'text': 'Your file is ready.', 'url': '/files/7/', 'level': 'success'}

    Raises ValueError for other levels and for other schemes (javascript:), LimitExceeded (MAIL_MAX_BYTES).
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
    return {"text": text, "url": _checked_url(url), "level": level}


def _checked_url(url: str) -> str:
    unfit = _UNFIT.search(payloads.text(url, "url"))
    if unfit:
        raise ValueError(f"url has {unfit[0]!r}: percent-encode it.")
    try:
        scheme = urlsplit(url).scheme
    except ValueError as error:
        raise ValueError(f"url is no address: {error}.") from None
    if scheme not in _SCHEMES:
        raise ValueError(
            f"url has the scheme {scheme!r}: give http, https, mailto, or an address of this site."
        )
    return url


def notification(payload: Any) -> Notification:
    """What a payload says, whoever sent it: what is no notification is shown as text without a link."""
    if not isinstance(payload, dict):
        return Notification(text=_as_text(payload), url="", level="info")
    level, url = payload.get("level"), payload.get("url", "")
    try:
        checked = _checked_url(url)
    except (TypeError, ValueError):
        checked = ""
    return Notification(
        text=_as_text(payload.get("text", payload)), url=checked, level=level if level in LEVELS else "info"
    )


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else payloads.dumps(value)
