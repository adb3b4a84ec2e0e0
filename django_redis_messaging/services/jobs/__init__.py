"""The lease engine, and the delay queue on it."""

from .engine import DeadJob, Job, QueueStats
from .queue import DelayQueue

__all__ = ["DeadJob", "DelayQueue", "Job", "QueueStats"]
