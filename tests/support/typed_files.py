"""Files that a document shows, typed in as its readers do: whole ones, and changes as diffs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

#: a block: its language and its text
BLOCK = re.compile(r"^(`{3,})(\w+)\n(.*?)^\1$", re.MULTILINE | re.DOTALL)
#: the file of a block, in the text before it
PLACE = re.compile(r"`([\w/]+\.\w+)`")


class Block(NamedTuple):
    """A block of a document, and the file that it is typed into."""

    path: str
    language: str
    text: str


def place(paragraph: str) -> str:
    """The file that a paragraph names."""
    found = PLACE.search(paragraph)
    assert found is not None, f"the text before a block names no file: {paragraph!r}"
    return found[1]


def type_in(block: Block, root: Path) -> None:
    """Write a new file, or make the changes of a diff in an existing one."""
    path = root / block.path
    if block.language != "diff":
        assert not path.exists(), f"{block.path} exists: show a diff"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, encoding="utf-8")
        return
    lines = path.read_text(encoding="utf-8").splitlines()
    at: int | None = None  # of the next line
    for line in filter(None, block.text.splitlines()):
        if line.startswith("+"):
            assert at is not None, "a diff begins with a line of the file"
            lines.insert(at, line[1:])
            at += 1
        else:
            found = lines.count(line[1:])
            assert found == 1, f"{block.path} has {found} lines {line[1:]!r}"
            at = lines.index(line[1:])
            if line.startswith("-"):
                del lines[at]
            else:
                at += 1
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
