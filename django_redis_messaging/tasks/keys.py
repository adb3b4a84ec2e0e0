"""The keys of tasks beyond those of their jobs."""

from __future__ import annotations

import functools

from ..services.semaphores.keys import SemaphoreKeys


class ConcurrencyKeys(SemaphoreKeys):
    """The keys of the semaphore of a `concurrency_key`, in one slot."""

    @functools.cached_property
    def declared(self) -> str:
        """STRING: the limit that the code of a worker declared last. Expires when the semaphore has not been
        used for a month."""
        return self.tag + ":declared"
