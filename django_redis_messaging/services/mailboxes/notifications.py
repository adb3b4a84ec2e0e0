"""Notifications: mails with a fixed payload format, shown by the bell and on the pages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from django.conf import settings
from django.utils.encoding import iri_to_uri
from django.utils.http import is_same_domain, url_has_allowed_host_and_scheme

from ... import conf
from ...core import encoding
from ...core.commands import batched
from ...core.operations import Script, Service, Steps, asynchronous, operation
from ...errors import InvalidArgument
from ..common.arguments import UserOrId, member_id, member_ids
from ..users.privacy import find_blocking
from .mailbox import Mail, Mailbox, MailboxKeys, sending_arguments

Level = Literal["info", "success", "warning", "error"]
LEVELS: tuple[Level, ...] = get_args(Level)
#: hosts that Django allows in development
_LOCAL_HOSTS = (".localhost", "127.0.0.1", "[::1]")
#: characters of a percent-encoded URL: Django does not redirect to longer ones
_MAX_URL_LENGTH = 2000
#: characters that browsers drop or reinterpret: they could hide a scheme
_UNSAFE = re.compile(r"[\x00-\x20\x7f-\x9f\\]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Notification:
    """The content of a mail sent by `notify`."""

    text: str
    url: str
    level: Level


def notify(
    user: UserOrId,
    text: str,
    *,
    url: str = "",
    level: Level = "info",
    group: str | None = None,
    sender: UserOrId | None = None,
    request_id: str | None = None,
    using: str | None = None,
) -> Mail:
    """Notify a user: send a mail that the bell counts and the notifications page shows.

    `text` is plain text. `url` is the link target: a URL of this site, or one whose host is in LINK_HOSTS.
    `level` is "info", "success", "warning" or "error". `group` is the group of Mailbox.send: only the newest
    notification of a group is shown, with their number.

    >>> notify("notify-example", "Your file is ready.", url="/files/7/", level="success").payload
    {'text': 'Your file is ready.', 'url': '/files/7/', 'level': 'success'}

    Raises InvalidArgument for other levels and other URLs (https://elsewhere.example/, javascript:),
    LimitExceeded (MAIL_MAX_BYTES).
    """
    mailbox = Mailbox(user, using=using)
    return mailbox.send(_payload(text, url, level), sender=sender, group=group, request_id=request_id)


async def anotify(
    user: UserOrId,
    text: str,
    *,
    url: str = "",
    level: Level = "info",
    group: str | None = None,
    sender: UserOrId | None = None,
    request_id: str | None = None,
    using: str | None = None,
) -> Mail:
    """Async version of `notify`."""
    mailbox = Mailbox(user, using=using)
    return await mailbox.asend(_payload(text, url, level), sender=sender, group=group, request_id=request_id)


class Mailing(Service):
    """Sends one mail to several mailboxes."""

    @operation
    def send(
        self,
        users: Sequence[UserOrId],
        payload: dict[str, str],
        group: str | None,
        sender: UserOrId | None,
        request_id: str | None,
    ) -> Steps[list[str]]:
        sender = None if sender is None else member_id(sender, "sender")
        arguments = sending_arguments(payload, sender, group, request_id)
        notified = list(dict.fromkeys(member_ids(users, "users")))
        if sender is not None:
            blocking = yield from find_blocking(self._prefix, notified, sender)
            notified = [user for user in notified if user not in blocking]
        for page in batched(notified):
            keys = [MailboxKeys(self._prefix, user).sending for user in page]
            yield [Script("mailboxes/send", each, arguments) for each in keys]
        return notified

    asend = asynchronous(send)


def notify_many(
    users: Sequence[UserOrId],
    text: str,
    *,
    url: str = "",
    level: Level = "info",
    group: str | None = None,
    sender: UserOrId | None = None,
    request_id: str | None = None,
    using: str | None = None,
) -> list[str]:
    """Notify several users, without those who have blocked the `sender`; returns those who were notified.

    Takes the same arguments as `notify`, and one or, with a sender, two round trips for each 500 users. A
    failure may have notified some of them: repeat the call with the same `request_id`.

    >>> notify_many(["many-example-1", "many-example-2"], "Lunch is ready.", sender="cook")
    ['many-example-1', 'many-example-2']

    Raises the same errors as `notify`.
    """
    return Mailing(using=using).send(users, _payload(text, url, level), group, sender, request_id)


async def anotify_many(
    users: Sequence[UserOrId],
    text: str,
    *,
    url: str = "",
    level: Level = "info",
    group: str | None = None,
    sender: UserOrId | None = None,
    request_id: str | None = None,
    using: str | None = None,
) -> list[str]:
    """Async version of `notify_many`."""
    return await Mailing(using=using).asend(users, _payload(text, url, level), group, sender, request_id)


def _payload(text: str, url: str, level: str) -> dict[str, str]:
    if not encoding.text(text, "text").strip():
        raise InvalidArgument("text must not be empty.")
    if level not in LEVELS:
        raise InvalidArgument(f"level must be one of {', '.join(map(repr, LEVELS))}, not {level!r}.")
    return {"text": text, "url": checked_url(url), "level": level}


def checked_url(url: str) -> str:
    """`url` if a notification may link to it, or if it is empty; otherwise raises ValueError.

    URLs of this site are those without a host and those with a host in ALLOWED_HOSTS, except "*".
    """
    unsafe = _UNSAFE.search(encoding.text(url, "url"))
    if unsafe:
        raise InvalidArgument(f"url must not contain {unsafe[0]!r}: percent-encode it.")
    length = len(iri_to_uri(url))
    if length > _MAX_URL_LENGTH:
        raise InvalidArgument(
            f"url must have at most {_MAX_URL_LENGTH} characters when percent-encoded, not {length}."
        )
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError as error:
        raise InvalidArgument(f"url is invalid: {error}.") from None
    hosts = {parts.netloc} if _is_allowed(f"[{host}]" if ":" in host else host) else set()
    if url and not url_has_allowed_host_and_scheme(url, hosts):
        raise InvalidArgument(
            "url must be a URL of this site, as returned by reverse(), or have a host in "
            "REDIS_MESSAGING['LINK_HOSTS']."
        )
    return url


def _is_allowed(host: str) -> bool:
    """Whether links may have this host. "*" in ALLOWED_HOSTS does not allow links to any host."""
    local = _LOCAL_HOSTS if settings.DEBUG and not settings.ALLOWED_HOSTS else ()
    own = (pattern for pattern in settings.ALLOWED_HOSTS if pattern != "*")
    patterns = (*own, *local, *conf.current().LINK_HOSTS)
    return any(pattern == "*" or is_same_domain(host, pattern) for pattern in patterns)


def notification(payload: Any) -> Notification:
    """Parse a payload from any sender: one that is not a notification becomes text without a link."""
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
    return value if isinstance(value, str) else encoding.dumps(value)
