"""E-mail digests: what users have not read for some time. The work of `manage.py send_digests`."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from datetime import datetime, timedelta, tzinfo
from email.policy import Policy
from typing import Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.conf import settings
from django.core.mail import EmailMultiAlternatives
from django.core.signing import BadSignature, Signer
from django.template.loader import render_to_string
from django.urls import NoReverseMatch, reverse
from django.utils import timezone, translation
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from .. import conf
from ..core.keys import current_prefix
from ..errors import ConfigurationError, InvalidArgument
from ..services.chats import Message
from ..services.chats.digests import DigestInbox, DigestRecord, UnreadChat
from .identity import Identity
from .people import People
from .rendering import EXCERPT_LENGTH, ChatRow, chat_rows, shown_title
from .texts import unlinked

#: chats in a digest; others are counted
MAX_SHOWN_CHATS = 20
#: messages of a chat whose text is shown, the latest
MAX_EXCERPTS = 3
#: characters of a name, and of a chat's title
MAX_NAME_LENGTH = 60
MAX_TITLE_LENGTH = 80

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Excerpt:
    """The beginning of a message: texts of users, without links and in one line."""

    name: str
    text: str
    #: in the time zone of the recipient
    sent_at: datetime


@dataclasses.dataclass(frozen=True, slots=True)
class DigestChat:
    """A chat in a digest."""

    #: the names of the others; of a group with a title, that it is one, and the title
    heading: str
    url: str
    #: messages that are in the digest
    count: int
    #: the latest of them, the oldest first
    excerpts: Sequence[Excerpt]


@dataclasses.dataclass(frozen=True, slots=True)
class Digest:
    """What is mailed to a user."""

    member: str
    chats: Sequence[DigestChat]
    #: messages and chats in total, including chats that are not shown
    message_count: int
    chat_count: int
    #: a later digest contains only messages that were sent after this
    until: datetime

    @property
    def more(self) -> int:
        """Number of chats that are not shown."""
        return self.chat_count - len(self.chats)


class Site:
    """The pages as mails link to them, by the absolute URL before their paths.

    Raises ConfigurationError without one, or if the pages are not among the site's URLs; InvalidArgument for
    an invalid one.
    """

    def __init__(self, base_url: str = "") -> None:
        base = base_url or conf.current().DIGEST_BASE_URL
        if not base:
            raise ConfigurationError(
                f'Mails need absolute links: set {conf.NAME}["DIGEST_BASE_URL"], or pass --base-url, '
                "to a URL such as https://example.com."
            )
        self._base = base.rstrip("/")
        self.host = _checked_host(base)
        try:
            self.chats = self.url("chats")
        except NoReverseMatch as error:
            raise ConfigurationError(
                'The pages are not among the URLs of the site: add include("django_redis_messaging.urls").'
            ) from error

    def url(self, name: str, *args: Any) -> str:
        """The absolute URL of a page."""
        return self._base + reverse(f"messaging:{name}", args=args)


def _checked_host(base: str) -> str:
    """The host of a base URL."""
    try:
        parts = urlsplit(base)
    except ValueError:
        parts = urlsplit("")
    host = parts.hostname if parts.scheme in ("http", "https") and base.isprintable() else None
    if not host or parts.query or parts.fragment:
        raise InvalidArgument(f"The base URL must be like https://example.com, not {base!r}.")
    return host


def find_digest(identity: Identity, member: str, site: Site) -> Digest | None:
    """The digest of a user, in the active language and time zone. None if there is none. Changes nothing.

    It contains messages by others, except blocked ones, in chats that are not muted, unread for DIGEST_AFTER,
    and not in an earlier digest. Users who have chosen so get none.
    """
    inbox = DigestInbox(member)
    if not inbox.unread():
        return None
    state = DigestRecord(member).read()
    if not state.wanted:
        return None
    until = state.now - timedelta(seconds=conf.current().DIGEST_AFTER)
    found = inbox.find(state.since, until, hidden=state.blocked, latest=MAX_EXCERPTS)
    if not found:
        return None
    return Digest(
        member=member,
        chats=_shown_chats(identity, member, site, found[:MAX_SHOWN_CHATS]),
        message_count=sum(chat.summary.unread for chat in found),
        chat_count=len(found),
        until=until,
    )


def _shown_chats(
    identity: Identity, member: str, site: Site, found: Sequence[UnreadChat]
) -> list[DigestChat]:
    """The chats with their headings and excerpts."""
    people, senders = People(identity), {message.sender for chat in found for message in chat.latest}
    people.show(senders)
    rows = chat_rows([chat.summary for chat in found], people=people, me=member)
    names = {sender: unlinked(people[sender].name, MAX_NAME_LENGTH) for sender in senders}
    return [
        DigestChat(
            heading=_heading(row),
            url=site.url("room", row.id),
            count=row.summary.unread,
            excerpts=[_excerpt(message, names) for message in chat.latest],
        )
        for row, chat in zip(rows, found, strict=True)
    ]


def _excerpt(message: Message, names: dict[str, str]) -> Excerpt:
    text = unlinked(message.body[: EXCERPT_LENGTH * 2], EXCERPT_LENGTH)
    return Excerpt(names[message.sender], text, timezone.localtime(message.sent_at))


def _heading(row: ChatRow) -> str:
    """Who or what a chat is. A title is quoted, since it can be anything: also the name of another person."""
    title = unlinked(row.other.name if row.other else row.title, MAX_TITLE_LENGTH)
    if not shown_title(row.id, row.summary.title):
        return title
    if row.companion:
        return _("%(name)s, “%(title)s”") % {"name": unlinked(row.companion, MAX_NAME_LENGTH), "title": title}
    return _("Group “%(title)s”") % {"title": title}


def make_mail(digest: Digest, address: str, site: Site) -> EmailMultiAlternatives:
    """The mail with the digest, in the active language: as plain text and as HTML. One click in the mail
    program stops further ones (RFC 8058)."""
    subject = ngettext(
        "%(count)s unread message on %(site)s", "%(count)s unread messages on %(site)s", digest.message_count
    )
    subject %= {"count": digest.message_count, "site": site.host}
    unsubscribe = site.url("unsubscribe", unsubscribe_token(digest.member))
    context = {
        "digest": digest,
        "site": site,
        "subject": subject,
        "unsubscribe": unsubscribe,
        "language": translation.get_language(),
        "direction": "rtl" if translation.get_language_bidi() else "ltr",
        "time_zone": timezone.get_current_timezone_name(),
    }
    name = "django_redis_messaging/digest"
    text = render_to_string(f"{name}.txt", context)
    headers = {
        "Auto-Submitted": "auto-generated",
        "List-Unsubscribe": _UnfoldedHeader(f"<{unsubscribe}>"),
        "List-Unsubscribe-Post": "List-Unsubscribe=One-Click",
    }
    mail = EmailMultiAlternatives(subject, text, to=[address], headers=headers)
    mail.attach_alternative(render_to_string(f"{name}.html", context), "text/html")
    return mail


class _UnfoldedHeader(str):
    """A List-Unsubscribe header in one line. Python would encode a URL longer than a line (RFC 2047), which
    mail programs don't decode there."""

    name = "List-Unsubscribe"

    def fold(self, *, policy: Policy[Any]) -> str:
        return f"{self.name}: {self}{policy.linesep}"


def unsubscribe_token(member: str) -> str:
    """A text with which anybody can stop the digests of this user, and do nothing else."""
    return _signer().sign_object(member)


def member_of_token(token: str) -> str | None:
    """The id for which `unsubscribe_token` made this text; None if it made no such text."""
    try:
        member: str = _signer().unsign_object(token)
    except BadSignature:
        return None
    return member


def _signer() -> Signer:
    # Tenants have different prefixes, but can have users with equal ids.
    return Signer(salt=f"django_redis_messaging.digests:{current_prefix()}")


def language_of(identity: Identity, user: Any) -> str:
    """The language of a user's mails; that of the site if the identity returns none."""
    return identity.language(user) or str(settings.LANGUAGE_CODE)


def time_zone_of(identity: Identity, user: Any) -> tzinfo:
    """The time zone of a user's mails; that of the site if the identity returns none, or an unknown one."""
    name = identity.time_zone(user)
    try:
        return ZoneInfo(name) if name else timezone.get_default_timezone()
    except (ValueError, OSError, ZoneInfoNotFoundError):
        _logger.warning("Unknown time zone %r of %r, using that of the site.", name, identity.member_id(user))
        return timezone.get_default_timezone()
