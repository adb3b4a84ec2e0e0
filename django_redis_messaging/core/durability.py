"""Confirmation of writes by replicas, for the setting DURABILITY.

A primary replies before its replicas have the write, so a failover can lose it. With this setting, WAIT
follows each writing call in the same round trip: it replies once that many replicas have the write.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from redis.exceptions import RedisError

from .. import conf
from ..errors import ConfigurationError
from .steps import Words

#: number of replies to `Durability.words`
REPLIES = 2

#: what the setting must be
FORM = '{"replicas": an integer above 0, "timeout": seconds above 0}'


class Unconfirmed(RedisError):
    """A call was applied, but perhaps too few replicas have it."""


class Durability(NamedTuple):
    """How many replicas must confirm each write."""

    replicas: int
    #: seconds
    timeout: float

    def words(self, key: str, seconds: float) -> list[Words]:
        """What to send after calls that write; `key`: of one of them. The last reply is the number of
        confirmations, within the timeout and `seconds`.

        WAIT confirms what its own connection has written, with some servers no more. So a write comes first:
        else a repeated request, which writes nothing, would be confirmed before its first attempt is.
        """
        limit = max(int(1000 * min(self.timeout, seconds)), 1)  # 0 would mean: for ever
        # encoded names never contain this ending; an error reply, as of a full server, doesn't matter
        write: Words = ("SET", f"{key}:%w", "", "PX", "1")
        confirm: Words = ("WAIT", str(self.replicas), str(limit))
        return [write, confirm]

    def failure(self, confirmed: Any) -> Unconfirmed | None:
        """The error to raise after a reply to WAIT, if any."""
        if isinstance(confirmed, RedisError):  # such as UNBLOCKED: the primary was demoted meanwhile
            return Unconfirmed(f"the confirmation failed ({confirmed})")
        if confirmed >= self.replicas:
            return None
        return Unconfirmed(
            f"only {confirmed} of {self.replicas} replicas have confirmed it within {self.timeout} s"
        )


def is_valid(setting: Any) -> bool:
    """Whether a setting has the required form.

    >>> is_valid({"replicas": 1, "timeout": 0.5}), is_valid({"replicas": 1})
    (True, False)
    """
    if not isinstance(setting, Mapping) or setting.keys() != {"replicas", "timeout"}:
        return False
    replicas, timeout = setting["replicas"], setting["timeout"]
    return (
        type(replicas) is int
        and replicas > 0
        and type(timeout) in {int, float}
        and 0 < timeout < float("inf")
    )


def configured() -> Durability | None:
    """The setting; None: writes are not confirmed. Raises ConfigurationError."""
    setting = conf.current().DURABILITY
    if setting is None:
        return None
    if not is_valid(setting):
        raise ConfigurationError(f"{conf.NAME}['DURABILITY'] must be {FORM}, not {setting!r}.")
    return Durability(int(setting["replicas"]), setting["timeout"])
