"""Mails the digests of all users, one after the other."""

from __future__ import annotations

import dataclasses
import logging
import smtplib
import time
from collections.abc import Callable, Iterator
from typing import Any

from django.core import mail
from django.core.exceptions import ValidationError
from django.utils import timezone, translation

from ..errors import ConfigurationError, MessagingError, OutcomeUnknown, Unavailable
from ..services.chats.digests import DigestRecord, DigestRun
from ..services.locks import Lock
from .digests import Digest, Site, find_digest, language_of, make_mail, time_zone_of
from .identity import current

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
