"""Access to streams: which requests may become one, what they give back then, and when the user loses it."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from asgiref.sync import SyncToAsync, sync_to_async
from django.contrib import auth
from django.db import close_old_connections, connections
from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

from .. import conf
from ..core import clients, encoding
from ..core.outcome import deadline
from ..errors import MessagingError
from ..services.live.hints import signing_out
from .identity import Identity, current

if TYPE_CHECKING:
    from django.contrib.auth.models import User

logger = logging.getLogger(__name__)

#: seconds that signing out may be delayed
SIGN_OUT_TIMEOUT = 0.25


def can_stream(request: HttpRequest) -> bool:
    """Whether answers to requests like this one can be streams: the site has them, and runs under ASGI."""
    return conf.current().LIVE and hasattr(request, "scope")


class Access:
    """Whether the user of a request may still use the pages: not after signing out, for example. Create it in
    synchronous code: it reads the session."""

    def __init__(self, request: HttpRequest, me: str, identity: Identity) -> None:
        session: Any = getattr(request, "session", None)
        self._key = session.session_key if session is not None and auth.SESSION_KEY in session else None
        self._open: Any = type(session)
        self._me = me
        self._identity = identity

    def release(self, request: HttpRequest) -> None:
        """Forget what Django has read for a request that becomes a stream, and would keep as long as the
        stream lasts: the parsed headers and parameters, the session and its user. They are read again if
        they are used again. A user whom the site's own middleware has set stays."""
        is_of_session = self._key is not None and request.user == request.__dict__.get("_cached_user")
        for name in ("GET", "COOKIES", "headers", "_cached_user"):
            request.__dict__.pop(name, None)
        if is_of_session:
            request.session = self._open(self._key)
            request.user = cast("User", SimpleLazyObject(partial(auth.get_user, request)))

    async def holds(self) -> bool:
        """Whether the session still exists and belongs to the user. A user who is authenticated without a
        session is checked when the client reconnects."""
        return self._key is None or await asyncio.to_thread(self._check)

    def _check(self) -> bool:
        close_old_connections()
        try:
            request = HttpRequest()
            request.session = self._open(self._key)
            user = auth.get_user(request)
            return self._identity.may_use(user) and self._identity.member_id(user) == self._me
        finally:
            close_old_connections()


async def release_thread() -> None:
    """Close the database connections of a request that becomes a stream, and end the thread in which its
    synchronous code has run: it would be idle as long as the stream lasts."""
    await sync_to_async(_close_connections)()
    context: Any = SyncToAsync.thread_sensitive_context.get(None)
    if context is not None and getattr(context, "_executor", None) is None:  # else the thread is the site's
        # To leave the context that Django has entered for the request ends its thread. Entered again, it has
        # none until synchronous code runs in it. Django 5.2 has entered it in another task, where alone the
        # variable can be reset: here, it keeps its value, and entering changes nothing.
        with suppress(ValueError):
            await context.__aexit__(None, None, None)
        await context.__aenter__()


def _close_connections() -> None:
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


def user_signed_out(user: Any, **_: Any) -> None:
    """End the streams of a user. A receiver: apps.py connects it."""
    if user is None or not conf.current().LIVE:
        return
    member = current().member_id(user)
    try:
        with deadline(SIGN_OUT_TIMEOUT):
            clients.execute(conf.alias(), signing_out(encoding.current_prefix(), member))
    except MessagingError as error:
        logger.warning("Ending the streams of a user who has signed out is delayed: %s", error)
