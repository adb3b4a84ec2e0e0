"""What docs/tutorial.md asks its readers to do: commands, files, and what they do and see in two browsers.

- A block of `console` has commands after `$`, and lines that they print, in which "…" stands for anything.
- The paragraph before another block says what to do with it: `Create`, `Replace`, `Change` (a diff) or
  `At the end of` a file.
- "stop `name`" ends that process.
- The items of numbered lists say what Ann and Bob do and see: CLAUSES. Nothing else may be in them.
- A picture shows the page of one of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..support.typed_files import BLOCK, Block, place

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
ITEM = re.compile(r"^\d+\. (.*(?:\n {3}.*)*)", re.MULTILINE)
STOP = re.compile(r"\bstop `(\w+)`")
PICTURE = re.compile(r"!\[(Ann|Bob)\b[^]]*\]\((\S+)\)")
#: ways to write a block into the file that the paragraph before it names
WAYS = ("Create", "Replace", "Change", "At the end of")
#: what is said about somebody → the action
CLAUSES = {
    r"opens <(?P<url>[^>]+)>": "open",
    r"(?:types )?`(?P<text>[^`]+)` into \*\*(?P<label>[^*]+)\*\*": "type",
    r"clicks the bell": "click_bell",
    r"clicks \*\*(?P<name>[^*]+)\*\*": "click",
    r"presses \*\*(?P<key>\w+)\*\*": "press",
    r"sees \*\*(?P<number>\d+)\*\* on the bell": "see_bell",
    r"(?:sees )?\*\*(?P<text>[^*]+)\*\*": "see",
}
CLAUSE = "|".join(re.sub(r"\?P<\w+>", "?:", pattern) for pattern in CLAUSES)
SENTENCE = re.compile(rf"(Ann|Bob) ((?:(?:, and |, | and )?(?:{CLAUSE}))+)\.")


class Run(NamedTuple):
    """A command, and the lines that it prints."""

    command: str
    output: tuple[str, ...]


class Write(NamedTuple):
    """A block, and how it gets into its file."""

    way: str
    block: Block


class Stop(NamedTuple):
    """The end of a running command."""

    command: str


class Act(NamedTuple):
    """What somebody does or sees."""

    who: str
    action: str
    arguments: dict[str, str]


class Picture(NamedTuple):
    """What somebody sees, as a picture."""

    who: str
    path: Path


Step = Run | Write | Stop | Act | Picture


def steps(text: str) -> Iterator[Step]:
    """What a page asks for, in its order."""
    end = 0
    for block in BLOCK.finditer(text):
        yield from _of_prose(text[end : block.start()])
        paragraph = text[end : block.start()].rstrip().rpartition("\n\n")[2]
        yield from _of_block(block[2], block[3], " ".join(paragraph.split()))
        end = block.end()
    yield from _of_prose(text[end:])


def _of_block(language: str, text: str, paragraph: str) -> Iterator[Step]:
    if language == "console":
        first, *commands = re.split(r"^\$ ", text, flags=re.MULTILINE)
        assert first == "", f"a block of console begins with a command: {first!r}"
        for command, *output in map(str.splitlines, commands):
            yield Run(command, tuple(output))
        return
    found = re.findall(rf"(?:^|\. )({'|'.join(WAYS)})\b(.*?)(?=[.:,] |:$)", paragraph)
    assert len(found) == 1, (
        f"the paragraph before a block has {len(found)} sentences with {WAYS}: {paragraph!r}"
    )
    [(way, what)] = found
    yield Write(way, Block(place(what), language, text))


def _of_prose(text: str) -> Iterator[Step]:
    for found in re.finditer("|".join((ITEM.pattern, STOP.pattern, PICTURE.pattern)), text, re.MULTILINE):
        item, stopped, who, picture = found.groups()
        if item:
            yield from acts(" ".join(item.split()))
        else:
            yield Stop(stopped) if stopped else Picture(who, PAGE.parent / picture)


def acts(item: str) -> Iterator[Act]:
    """What an item of a list says that somebody does and sees."""
    rest = SENTENCE.sub("", item).strip()
    assert rest == "", f"not understood: {rest!r} in {item!r}"
    for who, clauses in SENTENCE.findall(item):
        for clause in re.findall(CLAUSE, clauses):
            yield next(
                Act(who, action, found.groupdict())
                for pattern, action in CLAUSES.items()
                if (found := re.fullmatch(pattern, clause))
            )
