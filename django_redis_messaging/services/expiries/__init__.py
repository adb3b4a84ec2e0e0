"""Expiry timers: a real key with a real TTL, and beside it a job that counts."""

from .timers import Expiry

__all__ = ["Expiry"]
