"""How often a user may do something: at most so many times per period, by exact sliding windows."""

from __future__ import annotations

from typing import Any, Self

from ... import conf
from ...core.encoding import encoded, name, tag
from ...core.operations import Script, Service, Steps, asynchronous, operation
from ...errors import InvalidArgument, LimitExceeded, RateExceeded
from ..common.arguments import integer, request
from .rate_limit import Rate

#: seconds
MINUTE, HOUR = 60.0, 3600.0
#: action → the setting with its limit, and its period
RATES: dict[str, tuple[str, float]] = {
    "send": ("SEND_RATE", MINUTE),
    "edit": ("EDIT_RATE", MINUTE),
    "search": ("SEARCH_RATE", MINUTE),
    "create": ("CREATE_RATE", HOUR),
    "invite": ("INVITE_RATE", HOUR),
    "rename": ("RENAME_RATE", HOUR),
    "change": ("CHANGE_RATE", MINUTE),
    "typing": ("CHANGE_RATE", MINUTE),
}
#: actions that only the pages count
COUNTED_BY_PAGES = frozenset({"search", "change", "typing"})
#: above any limit
_MAX_TIMES = 10**6
#: where the ms to wait are in a reply of the script
_WAIT = 2


def rate_key(prefix: str, user: str, action: str) -> str:
    """LIST of µs and request: the server time and the call of the user's latest uses of an action, as many as
    the limit of a period. Expires a period after the latest use."""
    return f"{tag(prefix, 'user', user)}:rate:{encoded(action)}"


class UserRate(Service):
    """Allows `limit` uses per `period` (seconds), in one burst or evenly spread, as RateLimit does with the
    algorithm "window". Its key is one of the user's, so that it is deleted with them.

        UserRate("ann", "send", limit=60, period=60).take()      # 0.0, or the seconds to wait
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
        self._action = action

    @classmethod
    def of(cls, user: str, action: str, *, using: str | None = None) -> Self:
        """The rate of an action that the settings limit: one of RATES."""
        setting, period = RATES[action]
        return cls(user, action, limit=getattr(conf.current(), setting), period=period, using=using)

    @operation
    def take(self, times: int = 1) -> Steps[float]:
        """Use the allowance, all `times` or none; returns 0.0, or the seconds to wait.

        Raises LimitExceeded for more times than the limit: waiting would not help.
        """
        return int((yield self.use(times))[_WAIT]) / 1000

    atake = asynchronous(take)

    @operation
    def require(self, times: int = 1) -> Steps[None]:
        """Use the allowance like `take`. Raises RateExceeded if it has to wait."""
        yield from self.required(times)

    arequire = asynchronous(require)

    def required(self, times: int) -> Steps[None]:
        """The steps of `require`, for the operations of other services."""
        self.check((yield self.use(times)))

    def use(self, times: int = 1) -> Script:
        """The step of `take`; `check` takes its reply."""
        integer(times, "times", minimum=1, maximum=_MAX_TIMES)
        if times > self._limit:
            raise LimitExceeded(
                f"{self._action} uses at once", limit=self._limit, actual=times, setting=self._setting
            )
        # a repeat is recognized as long as the use counts
        args = (times, request(None), 0, self._limit, self._period)
        return Script("rates/window_take", [self._key], args)

    def peeking(self) -> Script:
        """The step that reads whether the user could do it now, for lists of users."""
        return Script("rates/window_peek", [self._key], [1, self._limit, self._period])

    @property
    def rate(self) -> Rate:
        """The limit and its period."""
        return Rate(self._limit, self._period / 1000)

    def check(self, reply: Any) -> None:
        """Raise RateExceeded if this reply to `use` refuses it."""
        if wait := reply[_WAIT]:
            raise RateExceeded(
                f"{self._action} uses per {self._period / 1000:g} s",
                limit=self._limit,
                retry_after=wait / 1000,
                setting=self._setting,
            )

    def undo(self, use: Script) -> Script:
        """The step that takes back what `use` has used."""
        *_, times, request_id, _, _, _ = use.words
        return Script("rates/window_undo", [self._key], [request_id, times])

    @property
    def _setting(self) -> str:
        return RATES[self._action][0] if self._action in RATES else ""
