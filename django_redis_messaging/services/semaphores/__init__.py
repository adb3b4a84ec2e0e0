"""Semaphores: at most a fixed number of holders at a time, across processes."""

from .permits import SemaphoreInfo
from .semaphore import Semaphore

__all__ = ["Semaphore", "SemaphoreInfo"]
