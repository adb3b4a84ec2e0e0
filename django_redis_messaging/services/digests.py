"""Records which messages a user has been mailed in a digest."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from ..core.keys import name
from ..core.operations import Command, Script, Service, Steps, asynchronous, operation
from .moments import to_datetime
from .users import UserKeys

#: older messages are in no digest; so a record may expire at this age
MAX_AGE = timedelta(days=30)


class DigestTimes(NamedTuple):
    """Moments of the server's clock."""

    now: datetime
    #: a digest contains messages that were sent after this
    since: datetime


class DigestRecord(Service):
    """Until when a user's unread messages were mailed.

    >>> record = DigestRecord("digest-example")
    >>> now, since = record.read()
    >>> (now - since).days
    30
    >>> record.save(now)
    >>> record.read().since == now
    True
    """

    def __init__(self, user: str, *, using: str | None = None) -> None:
        super().__init__(using=using)
        self._key = UserKeys(self._prefix, name(user, "user")).digest

    @operation
    def read(self) -> Steps[DigestTimes]:
        """Read the server's clock, and the end of the last digest: at most MAX_AGE ago."""
        ms, until = yield Script("digest_read", [self._key])
        now = to_datetime(ms)
        oldest = now - MAX_AGE
        return DigestTimes(now, oldest if until is None else max(to_datetime(until), oldest))

    aread = asynchronous(read)

    @operation
    def save(self, until: datetime) -> Steps[None]:
        """Store that messages sent until this moment were mailed. Safe to repeat."""
        ms = (until - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)
        yield Command("SET", self._key, ms, "PX", MAX_AGE // timedelta(milliseconds=1))

    asave = asynchronous(save)


def forget_digest(prefix: str, user: str) -> Steps[None]:
    """Delete until when messages were mailed to a user."""
    yield Command("UNLINK", UserKeys(prefix, user).digest)
