"""The lease engine, and the delay queue on it."""

from .engine import Paused
from .queue import DeadJob, DelayQueue, Job, QueueStats

__all__ = ["DeadJob", "DelayQueue", "Job", "Paused", "QueueStats"]
