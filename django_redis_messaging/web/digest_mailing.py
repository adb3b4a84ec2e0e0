"""Mails the digests of all users, one after the other."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from typing import Any

from django.utils import translation

from ..errors import ConfigurationError, MessagingError, OutcomeUnknown, Unavailable
from ..services.digests import DigestRecord
from ..services.locks import Lock
from .digests import Digest, Site, find_digest, language_of, make_mail
from .identity import current

_logger = logging.getLogger(__name__)

#: users that are read from the database at once
BATCH = 500
#: seconds after which another run may begin if this one was killed
LEASE = 60
#: users in a row whose mails fail, after which the run ends
MAX_FAILURES = 10
#: errors that concern all users
_FATAL = (Unavailable, OutcomeUnknown, ConfigurationError)


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
    in between repeats this mail in the next run, and loses none.

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
        self._failures = 0
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
        for user in self._read_users():
            if self._lost or self._stopped():
                return False
            self._mail_to(user)
            self.counts.users += 1
        return True

    def _read_users(self) -> Iterator[Any]:
        page = list(self._users[:BATCH])
        while page:
            yield from page
            page = list(self._users.filter(pk__gt=page[-1].pk)[:BATCH])

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
            with translation.override(language_of(identity, user)):
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
        try:
            sent = message.send()
        except Exception as error:  # each mail backend has its own
            self._fail(digest, error)
            return
        if not sent:
            self._fail(digest, None)
            return
        self._failures = 0
        self.counts.mailed += 1
        DigestRecord(digest.member).save(digest.until)

    def _fail(self, digest: Digest, error: Exception | None) -> None:
        reason = "the mail backend sent nothing" if error is None else f"{type(error).__name__}: {error}"
        _logger.error("Mailing the digest of %r failed, the next run repeats it: %r", digest.member, reason)
        self.counts.failed += 1
        self._failures += 1
        if self._failures == MAX_FAILURES:
            raise MailingFailed(f"{MAX_FAILURES} mails in a row could not be sent; see the log.") from error


def send_digests(base_url: str = "") -> Counts:
    """Mail all digests, like `manage.py send_digests`: for a periodic task.

    Raises what Mailing and its `run` raise; LockError while another run is in progress.
    """
    mailing = Mailing(base_url=base_url)
    mailing.run()
    return mailing.counts
