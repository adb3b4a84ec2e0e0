"""As if an optional package were not installed."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from django_redis_messaging.services.directories.folding import readings


@contextmanager
def without_pypinyin() -> Iterator[None]:
    readings.cache_clear()
    try:
        with mock.patch.dict(sys.modules, pypinyin=None):
            yield
    finally:
        readings.cache_clear()
