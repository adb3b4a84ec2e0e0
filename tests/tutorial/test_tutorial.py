"""The tutorial, typed as it is: its commands, its files, and what it has two people do and see.

Nothing of the page is repeated here, so that it can't become outdated. The test differs from a reader:

- Nothing is downloaded. Instead of making a virtual environment and running `pip install`, the test uses the
  environment of the test run, and checks that it has these packages, with their extras.
- The ports are others.
- The development server and the worker are run again after a file was written, instead of watching files.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import django
import pytest
from playwright.sync_api import Browser

from django_redis_messaging.devserver.server import free_port

from .page import PAGE, acts, steps
from .typist import Typist, prints

TEXT = PAGE.read_text(encoding="utf-8")


@pytest.fixture
def port() -> int:
    """The port of the site."""
    return free_port()


@pytest.fixture
def typist(tmp_path: Path, browser: Browser, port: int) -> Iterator[Typist]:
    typist = Typist(tmp_path, browser, port)
    yield typist
    typist.close()


@pytest.mark.timeout(300)
@pytest.mark.skipif(django.VERSION < (6,), reason="Django has tasks since version 6.0")
def test_it_works(typist: Typist, port: int) -> None:
    text = TEXT.replace("6379", str(free_port())).replace("127.0.0.1:8000", f"127.0.0.1:{port}")
    for step in steps(text):
        try:
            typist.do(step)
        except BaseException as error:
            error.add_note(f"{step}\n{typist.report()}")
            raise


@pytest.mark.parametrize(
    "item", ["Ann dances.", "Bob sees the bell.", "Cat clicks **Pay**.", "Ann clicks **Pay**. This is easy."]
)
def test_what_no_reader_can_do_is_refused(item: str) -> None:
    with pytest.raises(AssertionError, match="not understood"):
        list(acts(item))


@pytest.mark.parametrize(
    ("lines", "is_printed"),
    [
        (("Done: 2 stored", "loaves … 1"), True),
        (("it took 9.5 s",), True),
        (("Done: 3 stored",), False),
        (("loaves … 12",), False),
        (("loaves … 1", "Done: 2 stored"), False),
    ],
)
def test_outputs_are_compared(lines: tuple[str, ...], is_printed: bool) -> None:
    output = "Done: 2 stored, 0 refused; it took 0.25 s.\nloaves  vm:77  1207   1\n"
    assert prints(output, lines) == is_printed
