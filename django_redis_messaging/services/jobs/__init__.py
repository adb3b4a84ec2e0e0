"""The lease engine, and the delay queue on it."""

from .queue import DeadJob, DelayQueue, Job, QueueStats

__all__ = ["DeadJob", "DelayQueue", "Job", "QueueStats"]
