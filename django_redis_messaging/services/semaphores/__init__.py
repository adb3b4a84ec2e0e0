"""Semaphores: at most a fixed number of holders at a time, across processes."""

from .semaphore import Semaphore, SemaphoreHolder, SemaphoreInfo, SemaphoreWaiter

__all__ = ["Semaphore", "SemaphoreHolder", "SemaphoreInfo", "SemaphoreWaiter"]
