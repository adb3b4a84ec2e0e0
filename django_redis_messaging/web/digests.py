"""E-mail digests: what users have not read for some time. The work of `manage.py send_digests`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from django.conf import settings
from django.core.mail import EmailMultiAlternatives
from django.template.loader import render_to_string
from django.urls import NoReverseMatch, reverse
from django.utils import translation
from django.utils.translation import ngettext

from .. import conf
from ..errors import ChatNotFound, ConfigurationError, InvalidArgument, NotAMember
from ..services.chats import Chat, ChatSummary, Message
from ..services.digests import DigestRecord
from ..services.inboxes import Inbox
from .identity import Identity
from .people import people
from .presentation import chat_rows, one_line

#: chats of a user that are examined, those with the latest activity
MAX_CHATS = 200
#: chats in a page of them
_PAGE_SIZE = 50
#: chats in a digest; others are counted
MAX_SHOWN_CHATS = 20
#: messages of a chat whose text is shown, the latest
MAX_EXCERPTS = 3
#: messages of a chat that are examined, the latest
MAX_MESSAGES = 100
#: reads of a chat, each of which returns 256 KiB at most
_MAX_READS = 4


@dataclasses.dataclass(frozen=True, slots=True)
class DigestChat:
    """A chat in a digest."""

    title: str
    url: str
    #: messages that are in the digest
    count: int
    #: (name of the sender, beginning of the text) of the latest of them, the oldest first
    excerpts: Sequence[tuple[str, str]]


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


class _Period(NamedTuple):
    """The period in which the messages of a digest were sent, after `since`."""

    since: datetime
    until: datetime


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
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise InvalidArgument(f"The base URL must be like https://example.com, not {base!r}.")
    return parts.hostname


def find_digest(identity: Identity, member: str, site: Site) -> Digest | None:
    """The digest of a user, in the active language: messages by others in chats that are not muted, unread
    for DIGEST_AFTER, and not in an earlier digest. None if there are none. Changes nothing."""
    if not Inbox(member).unread():
        return None
    now, since = DigestRecord(member).read()
    period = _Period(since, now - timedelta(seconds=conf.current().DIGEST_AFTER))
    found = [
        (summary, messages)
        for summary in _candidates(member, since)
        if (messages := _find_unread(summary, member, period))
    ]
    if not found:
        return None
    return Digest(
        member=member,
        chats=_shown_chats(identity, member, site, found[:MAX_SHOWN_CHATS]),
        message_count=sum(len(messages) for _, messages in found),
        chat_count=len(found),
        until=period.until,
    )


def _candidates(member: str, since: datetime) -> Iterator[ChatSummary]:
    """Chats with unread messages, of those with activity after `since`."""
    after = None
    for _ in range(MAX_CHATS // _PAGE_SIZE):
        page = Inbox(member).chats(limit=_PAGE_SIZE, after=after)
        for summary in page:
            if summary.active_at <= since:
                return
            if summary.unread and not summary.muted:
                yield summary
        if len(page) < _PAGE_SIZE:
            return
        after = page[-1].cursor


def _find_unread(summary: ChatSummary, member: str, period: _Period) -> list[Message]:
    """The unread messages by others that were sent in the period, of the latest MAX_MESSAGES."""
    if summary.last_message is None:
        return []
    chat, found = Chat(summary.chat_id), []
    after: str | int = max(summary.last_message.id - MAX_MESSAGES, 0)
    for _ in range(_MAX_READS):
        try:
            news = chat.changes(member, after=after, limit=MAX_MESSAGES)
        except (ChatNotFound, NotAMember):  # deleted or left since the list was read
            return []
        found += [
            message
            for message in news.messages
            if message.id > news.read_id
            and message.sender != member
            and not message.deleted
            and period.since < message.sent_at <= period.until
        ]
        if not news.has_more:
            break
        after = news.cursor
    return found


def _shown_chats(
    identity: Identity, member: str, site: Site, found: Sequence[tuple[ChatSummary, list[Message]]]
) -> list[DigestChat]:
    """The chats with their titles and excerpts; the names of all senders are fetched together."""
    latest = [messages[-MAX_EXCERPTS:] for _, messages in found]
    senders = {message.sender for messages in latest for message in messages}
    labels = {person.id: " ".join(person.label.split()) for person in people(identity, senders)}
    rows = chat_rows([summary for summary, _ in found], identity=identity, me=member)
    return [
        DigestChat(
            title=" ".join(row.title.split()),
            url=site.url("room", row.id),
            count=len(messages),
            excerpts=[(labels[message.sender], one_line(message)) for message in shown],
        )
        for row, (_, messages), shown in zip(rows, found, latest, strict=True)
    ]


def make_mail(digest: Digest, address: str, site: Site) -> EmailMultiAlternatives:
    """The mail with the digest, in the active language: as plain text and as HTML."""
    subject = ngettext(
        "%(count)s unread message on %(site)s", "%(count)s unread messages on %(site)s", digest.message_count
    )
    subject %= {"count": digest.message_count, "site": site.host}
    context = {
        "digest": digest,
        "site": site,
        "subject": subject,
        "language": translation.get_language(),
        "direction": "rtl" if translation.get_language_bidi() else "ltr",
    }
    name = "django_redis_messaging/digest"
    text = render_to_string(f"{name}.txt", context)
    mail = EmailMultiAlternatives(subject, text, to=[address], headers={"Auto-Submitted": "auto-generated"})
    mail.attach_alternative(render_to_string(f"{name}.html", context), "text/html")
    return mail


def language_of(identity: Identity, user: Any) -> str:
    """The language of a user's mails; that of the site if the identity returns none."""
    return identity.language(user) or str(settings.LANGUAGE_CODE)
