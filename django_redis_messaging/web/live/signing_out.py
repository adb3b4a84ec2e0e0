"""Ends the streams of a session when its user signs out."""

from __future__ import annotations

import logging
from typing import Any

from django.contrib.auth.signals import user_logged_out

from ... import conf
from ...errors import MessagingError

logger = logging.getLogger(__name__)
#: seconds that signing out may be delayed
TIMEOUT = 0.25


def connect() -> None:
    """Connect the receiver."""
    user_logged_out.connect(_signed_out, dispatch_uid="django_redis_messaging.live")


def _signed_out(user: Any, **_: Any) -> None:
    if user is None or not conf.current().LIVE:
        return
    # not at the top: the app imports this module before its models are loaded
    from ...core import clients, keys
    from ...core.retry import deadline
    from ...services.live.hints import signing_out
    from ..identity import current

    member = current().member_id(user)
    try:
        with deadline(TIMEOUT):
            clients.execute(conf.alias(), signing_out(keys.current_prefix(), member))
    except MessagingError as error:
        logger.warning("Ending the streams of a user who has signed out is delayed: %s", error)
