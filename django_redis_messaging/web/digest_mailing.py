"""E-mail digests: what users have not read for some time. The work of `manage.py send_digests`."""

from __future__ import annotations

import dataclasses
import logging
import smtplib
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, tzinfo
from email.policy import Policy
from typing import Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.conf import settings
from django.core import mail
from django.core.exceptions import ValidationError
from django.core.mail import EmailMultiAlternatives
from django.core.signing import BadSignature, Signer
from django.template.loader import render_to_string
from django.urls import NoReverseMatch, reverse
from django.utils import timezone, translation
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from .. import conf
from ..core.encoding import current_prefix
from ..errors import ConfigurationError, InvalidArgument, MessagingError, OutcomeUnknown, Unavailable
from ..services.chats import Message
from ..services.chats.digests import DigestInbox, DigestRecord, DigestRun, UnreadChat
from ..services.locks import Lock
from .identity import Identity, current
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
#: users that are read from the database at once
BATCH = 500
#: seconds after which another run may begin if this one was killed
LEASE = 60
#: mails in a row that fail, not because of their recipients, after which the run ends
MAX_FAILURES = 10
#: seconds that such failures may take together
MAX_FAILURE_TIME = 20.0
#: seconds for each reply of a mail server, if the site sets no timeout
MAIL_TIMEOUT = 10.0
#: errors that concern all users
_FATAL = (Unavailable, OutcomeUnknown, ConfigurationError)
#: replies of mail servers: one that ends the connection, and the first that means "never"
_SHUTTING_DOWN, _PERMANENT = 421, 500


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


class MailingFailed(Exception):
    """Several mails in a row could not be sent: the mail server may be unreachable."""


@dataclasses.dataclass(slots=True)
class Counts:
    """What a run has done."""

    users: int = 0
    mailed: int = 0
    failed: int = 0


class Mailing:
    """Mails digests to all users who want them. Each digest is recorded after its mail was sent, so a crash
    in between repeats this mail in the next run, and loses none. A run that ends early, for whatever reason,
    is continued by the next one, behind the user with whom it ended.

    `dry_run`: nothing is mailed or recorded. `stopped`: is called before each user; True ends the run.
    `found`: is called with each digest. Raises ConfigurationError and InvalidArgument like Site.
    """

    def __init__(
        self,
        *,
        base_url: str = "",
        dry_run: bool = False,
        stopped: Callable[[], bool] = lambda: False,
        found: Callable[[Digest], object] = lambda digest: None,
    ) -> None:
        self.counts = Counts()
        self._site = Site(base_url)
        self._dry_run = dry_run
        self._stopped = stopped
        self._found = found
        self._identity = current()
        self._users = self._identity.users().order_by("pk")
        #: failures in a row that concern all users: their number, and the seconds they took
        self._failures = 0
        self._failure_time = 0.0
        self._lost = False

    def total(self) -> int:
        """The number of users."""
        return int(self._users.count())

    def run(self) -> bool:
        """Mail all digests; returns False if it was stopped before the end.

        Raises LockError while another run is in progress, MailingFailed, Unavailable, OutcomeUnknown.
        """
        if self._dry_run:
            return self._mail_all()
        with Lock(
            "send_digests",
            timeout=LEASE,
            renew=True,
            blocking=False,
            on_lost=self._end,
            raise_on_release_error=False,
        ):
            return self._mail_all()

    def _end(self, error: Exception) -> None:
        _logger.warning("Ending the run, since another one may have begun: %s", error)
        self._lost = True

    def _mail_all(self) -> bool:
        progress = DigestRun()
        last, finished = None, False
        try:
            for user in self._read_users(None if self._dry_run else progress.read()):
                if self._lost or self._stopped():
                    return False
                # Set before the mail: an error must not end each run at the same user.
                last = str(user.pk)
                if self.counts.users % BATCH == BATCH - 1 and not self._dry_run:
                    progress.save(last)  # in case the process is killed
                self._mail_to(user)
                self.counts.users += 1
            finished = True
            return True
        finally:
            if not self._dry_run and not self._lost:
                self._record(progress, last, finished=finished)

    def _record(self, progress: DigestRun, last: str | None, *, finished: bool) -> None:
        """Record where the next run begins."""
        try:
            if finished:
                progress.end()
            elif last is not None:
                progress.save(last)
        except MessagingError as error:
            _logger.warning("Recording where the next run begins failed: %s", error)

    def _read_users(self, last: str | None) -> Iterator[Any]:
        """All users: those behind the last one of a run that ended early, then the others."""
        key = None if last is None else self._parse_key(last)
        if key is None:
            yield from _in_batches(self._users)
        else:
            yield from _in_batches(self._users.filter(pk__gt=key))
            yield from _in_batches(self._users.filter(pk__lte=key))

    def _parse_key(self, text: str) -> Any:
        """A primary key; None if the user model has changed since."""
        try:
            return self._users.model._meta.pk.to_python(text)
        except (ValidationError, ValueError, TypeError):
            return None

    def _mail_to(self, user: Any) -> None:
        """Mail the digest of one user, if there is one. An error of this user alone is logged."""
        identity = self._identity
        if not identity.may_use(user) or not identity.wants_digest(user):
            return
        address = identity.email(user)
        if not address:
            return
        member = identity.member_id(user)
        try:
            zone = time_zone_of(identity, user)
            with translation.override(language_of(identity, user)), timezone.override(zone):
                digest = find_digest(identity, member, self._site)
                if digest is not None:
                    self._deliver(digest, address)
        except _FATAL:
            raise
        except MessagingError as error:
            self.counts.failed += 1
            _logger.error("Reading the digest of %r failed: %s", member, error)

    def _deliver(self, digest: Digest, address: str) -> None:
        self._found(digest)
        if self._dry_run:
            self.counts.mailed += 1
            return
        message = make_mail(digest, address, self._site)
        began = time.monotonic()
        try:
            sent = _connection().send_messages([message])
        except Exception as error:  # each mail backend has its own
            self._fail(digest, error, time.monotonic() - began)
            return
        if not sent:
            self._fail(digest, None, time.monotonic() - began)
            return
        self._failures, self._failure_time = 0, 0.0
        self.counts.mailed += 1
        DigestRecord(digest.member).save(digest.until)

    def _fail(self, digest: Digest, error: Exception | None, seconds: float) -> None:
        reason = "the mail backend sent nothing" if error is None else f"{type(error).__name__}: {error}"
        _logger.error("Mailing the digest of %r failed, the next run repeats it: %r", digest.member, reason)
        self.counts.failed += 1
        if error is not None and _concerns_one_mail(error):
            return
        self._failures += 1
        self._failure_time += seconds
        if self._failures >= MAX_FAILURES or self._failure_time >= MAX_FAILURE_TIME:
            raise MailingFailed(
                f"Failed mails in a row: {self._failures}. The mail server may be unavailable; see the log. "
                "The next run continues with the users after them."
            ) from error


def _in_batches(users: Any) -> Iterator[Any]:
    """The users of a QuerySet that is ordered by primary key."""
    page = list(users[:BATCH])
    while page:
        yield from page
        page = list(users.filter(pk__gt=page[-1].pk)[:BATCH])


def _connection() -> Any:
    """A connection of the site's mail backend, which doesn't wait for ever for a server that is gone."""
    mailers = getattr(mail, "mailers", None)  # since Django 6.1
    connection: Any = mail.get_connection() if mailers is None else mailers.default
    if getattr(connection, "timeout", 0) is None:
        connection.timeout = MAIL_TIMEOUT
    return connection


def _concerns_one_mail(error: Exception) -> bool:
    """Whether the mail server, or Django, refused this mail or its address; mails to others may be sent."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return all(code != _SHUTTING_DOWN for code, _ in error.recipients.values())
    if isinstance(error, smtplib.SMTPDataError):
        return error.smtp_code >= _PERMANENT
    # An invalid address; but errors of certificates are ValueErrors, too.
    return isinstance(error, ValueError) and not isinstance(error, OSError)


def send_digests(base_url: str = "") -> Counts:
    """Mail all digests, like `manage.py send_digests`: for a periodic task.

    Raises what Mailing and its `run` raise; LockError while another run is in progress.
    """
    mailing = Mailing(base_url=base_url)
    mailing.run()
    return mailing.counts
