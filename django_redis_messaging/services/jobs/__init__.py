"""The lease engine, and the delay queue on it."""

from .queue import DelayQueue
from .values import DeadJob, Job, QueueStats

__all__ = ["DeadJob", "DelayQueue", "Job", "QueueStats"]
