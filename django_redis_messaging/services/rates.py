"""Rate limits: how many times per period a user may do something, by the server's clock."""

from __future__ import annotations

from ..core.keys import encoded, name, tag
from ..core.operations import Script, Service, Steps, asynchronous, operation
from ..errors import InvalidArgument


def rate_key(prefix: str, user: str, action: str) -> str:
    """LIST of ms: the server time of the user's latest uses of an action, as many as the limit of a period.
    Expires a period after the latest use."""
    return f"{tag(prefix, 'user', user)}:rate:{encoded(action)}"


class Rate(Service):
    """Allows `limit` uses per `period` (seconds), in one burst or evenly spread.

    No period, whenever it begins, has more than `limit` uses: a use is refused until the use that was `limit`
    uses earlier is a period ago, to the ms. Only if the server's clock is set back to before all of the last
    `limit` uses, these no longer count.

        Rate("ann", "send", limit=60, period=60).take()      # 0.0, or the seconds to wait
    """

    def __init__(
        self, user: str, action: str, *, limit: int, period: float, using: str | None = None
    ) -> None:
        super().__init__(using=using)
        if limit < 1 or period <= 0:
            raise InvalidArgument("A rate needs a limit of at least 1 and a period above 0 seconds.")
        self._key = rate_key(self._prefix, name(user, "user"), name(action, "action"))
        self._limit = limit
        self._period = round(period * 1000)

    @operation
    def take(self) -> Steps[float]:
        """Use the allowance once; returns 0.0, or the seconds to wait if none is left."""
        wait = yield Script("rate_take", [self._key], [self._limit, self._period])
        return int(wait) / 1000

    atake = asynchronous(take)
