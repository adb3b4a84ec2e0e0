"""docs/keys.md, and the number of the format in other documents.

`MESSAGING_KEYS=write uv run pytest -n 0 tests/test_keys_page.py` writes both.
"""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

import pytest

from django_redis_messaging.core.encoding import FORMAT

from . import keys_page
from .keys_page import DOCS, PACKAGE
from .support.programs import program

FILE = DOCS / "keys.md"
WRITES = os.environ.get("MESSAGING_KEYS") == "write"
#: the number of the format in keys that documents, comments and docstrings show
NUMBER = re.compile(r"(\b(?:messaging|site|PREFIX|a):|^const FORMAT = )\d+(?=[:`;])", re.MULTILINE)


def test_page_is_that_of_the_docstrings(own_prefix: str) -> None:
    stored = FILE.read_text(encoding="utf-8")
    text = keys_page.page(stored, program("redis-cli", "valkey-cli"), own_prefix)
    before, after = (keys_page.comparable(page).splitlines() for page in (stored, text))
    if before == after:
        return
    if WRITES:
        FILE.write_text(text, encoding="utf-8")
        return
    diff = difflib.unified_diff(before, after, FILE.name, "the code", lineterm="", n=1)
    pytest.fail("\n".join([f"{FILE.name} differs; this writes it: {__doc__}", *diff]), pytrace=False)


def documents() -> list[Path]:
    """The files that show keys."""
    root = DOCS.parent
    return [*root.glob("README*.md"), *DOCS.glob("*.m*"), *PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.lua")]


def test_documents_have_the_number_of_the_format() -> None:
    """So the number is changed in one place, and with the command above."""
    outdated = []
    for path in documents():
        text = path.read_text(encoding="utf-8")
        current = NUMBER.sub(rf"\g<1>{FORMAT}", text)
        if text != current:
            outdated.append(path.name)
            if WRITES:
                path.write_text(current, encoding="utf-8")
    assert WRITES or outdated == [], __doc__
