"""How often somebody may do something: a limit over a period, kept by the server's clock."""

from __future__ import annotations

from ..core.keys import UserKeys, name
from ..core.operations import Script, Service, Steps, asynchronous, operation


class Rate(Service):
    """`limit` times a `period` (seconds), all of them at once or evenly spread.

    The generic cell rate algorithm: one number says how much of the allowance is used, so nothing is
    counted in windows and there is no border at which twice the limit passes.

        Rate("ann", "send", limit=60, period=60).take()      # 0.0, or the seconds to wait
    """

    def __init__(
        self, user: str, action: str, *, limit: int, period: float, using: str | None = None
    ) -> None:
        super().__init__(using=using)
        if limit < 1 or period <= 0:
            raise ValueError("A rate needs a limit of at least 1 and a period above 0 seconds.")
        self._key = UserKeys(self._prefix, name(user, "user")).rate(name(action, "action"))
        self._limit = limit
        self._period = round(period * 1000)

    @operation
    def take(self) -> Steps[float]:
        """Use the allowance once: 0.0 if there was some, else the seconds until there is."""
        wait = yield Script("rate_take", [self._key], [self._limit, self._period])
        return int(wait) / 1000

    atake = asynchronous(take)
