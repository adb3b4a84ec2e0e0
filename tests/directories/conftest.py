"""These tests run on each kind of server, except those that start servers of their own."""

from ..support.faults import client
from ..support.worlds import limited_user, messaging_alias

__all__ = ["client", "limited_user", "messaging_alias"]  # fixtures
