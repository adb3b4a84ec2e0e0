"""Why something waits: the chain of causes, across jobs, locks, permits, queues and workers."""

from .chain import aexplain, explain
from .explanation import Cause, Explanation

__all__ = ["Cause", "Explanation", "aexplain", "explain"]
