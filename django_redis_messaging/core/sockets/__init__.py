"""Connections to a server, blocking or asyncio: they send calls and receive replies within a time limit.

The driver (redis-py) opens the socket: TCP, TLS or unix, as the CACHES entry configures. After that this
module uses the socket itself: one `send`, one `recv`, with hiredis as the parser. Any interruption of an
exchange closes the connection, so that a reply can never reach another caller. The protocol is RESP2, in
bytes.

Both classes have the same methods; worlds.py has what shared code needs to use either.
"""

from .awaiting import AsyncConnection
from .base import Address, Replies, Target, unusable_alias
from .blocking import BlockingConnection

__all__ = ["Address", "AsyncConnection", "BlockingConnection", "Replies", "Target", "unusable_alias"]
