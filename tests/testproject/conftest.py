"""The demo in a process: one for all tests of its pages, and others for tests that start and stop it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.web.conftest import browser_type_launch_args

from ..support.demo import Demo, demos

__all__ = ["browser_type_launch_args"]  # fixtures


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    """Starts demos that share a directory; kills those still running at the end."""
    with demos(tmp_path) as starting:
        yield starting


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """A running demo. Each test of a page uses other users or other parts of the data."""
    environment = {"DEMO_ACCESS_LOG": "", "DEMO_TIME_TO_PAY": "3"}
    with demos(tmp_path_factory.mktemp("demo")) as starting:
        yield starting("--chats", "9", "--messages", "50", env=environment)
