"""Who is online: the users who have a live stream in any process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from ... import conf
from ...core.commands import batched
from ...core.operations import Command, Script, Service, Steps, asynchronous, operation
from ...errors import MessagingError
from ..common.arguments import UserOrId, member_id, member_ids
from ..users.keys import UserKeys

logger = logging.getLogger(__name__)

#: ms for which a stream counts unless it is renewed
LIFETIME = 45_000
#: seconds between two renewals
RENEWAL = 15.0
#: ms for which a user is still online after their last stream
GRACE = 5000


class Presence(Service):
    """The users who have the pages of the site open, under ASGI, and let others see it.

    >>> Presence().online(["ann", "bob"])
    set()
    """

    @operation
    def online(self, users: Sequence[UserOrId]) -> Steps[set[str]]:
        """Those of the users who are online: they have a live stream, or had one some seconds ago; up to 45
        seconds longer if the process that had it was killed. One round trip for each 500 users."""
        found = set()
        for page in batched(member_ids(users, "users")):
            keys = [UserKeys(self._prefix, user).online for user in page]
            replies = yield [Command("EXISTS", key, reads=True) for key in keys]
            found |= {user for user, reply in zip(page, replies, strict=True) if reply}
        return found

    aonline = asynchronous(online)

    @operation
    def enter(self, user: UserOrId, token: str) -> Steps[bool]:
        """Count a stream of a user; False if they have LIVE_MAX_STREAMS already."""
        return bool((yield self._keep(user, token, conf.current().LIVE_MAX_STREAMS)))

    aenter = asynchronous(enter)

    @operation
    def renew(self, tokens: Mapping[str, UserOrId]) -> Steps[None]:
        """Go on counting streams; `tokens`: each with its user. One that is removed from them meanwhile has
        ended, and is not counted again."""
        for page in batched(list(tokens)):
            renewed = {token: tokens[token] for token in page if token in tokens}
            if renewed:
                yield [self._keep(user, token, 0) for token, user in renewed.items()]
            ended = [self._end(user, token) for token, user in renewed.items() if token not in tokens]
            if ended:
                yield ended

    arenew = asynchronous(renew)

    @operation
    def leave(self, user: UserOrId, token: str) -> Steps[None]:
        """Don't count a stream any longer."""
        yield self._end(user, token)

    aleave = asynchronous(leave)

    def _end(self, user: UserOrId, token: str) -> Script:
        keys = UserKeys(self._prefix, member_id(user, "user"))
        return Script("live/end", [keys.streams, keys.online], (token, GRACE))

    def _keep(self, user: UserOrId, token: str, limit: int) -> Script:
        keys = UserKeys(self._prefix, member_id(user, "user"))
        return Script("live/keep", [keys.streams, keys.online, keys.choices], (token, LIFETIME, limit))


async def renew_while_open(presence: Presence, tokens: Mapping[str, UserOrId]) -> None:
    """Renew the streams until cancelled."""
    while True:
        await asyncio.sleep(RENEWAL)
        try:
            await presence.arenew(tokens)
        except MessagingError as error:
            logger.warning("Renewing the presence of users failed, retrying: %s", error)
