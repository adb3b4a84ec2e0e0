"""Semaphores: at most a fixed number of holders at a time, across processes."""

from .semaphore import Semaphore
from .values import SemaphoreHolder, SemaphoreInfo, SemaphoreWaiter

__all__ = ["Semaphore", "SemaphoreHolder", "SemaphoreInfo", "SemaphoreWaiter"]
