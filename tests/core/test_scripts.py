"""Loading Lua files."""

import hashlib
import re
from pathlib import Path

import pytest

from django_redis_messaging.core import commands
from django_redis_messaging.core.commands import Script
from tests.support.example_service import SCRIPTS
from tests.support.server import server

pytestmark = pytest.mark.versions


def test_used_files_come_before_the_script() -> None:
    source = commands.load("thing_add")
    assert source.text == SCRIPTS["_thing"] + "\n" + SCRIPTS["thing_add"]
    assert source.sha == hashlib.sha1(source.text.encode(), usedforsecurity=False).hexdigest()


def test_reads_only_is_detected() -> None:
    assert commands.load("thing_get").reads_only
    assert not commands.load("thing_add").reads_only


def test_a_script_is_read_once() -> None:
    assert commands.load("thing_get") is commands.load("thing_get")


def test_a_missing_script_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        commands.load("no_such_script")


def test_the_words_of_a_call() -> None:
    call = Script("thing_add", ["k"], [1, b"x"])
    sha = commands.load("thing_add").sha
    assert call.words == ("EVALSHA", sha, "1", "k", "1", b"x")
    assert call.in_full == ("EVAL", commands.load("thing_add").text, "1", "k", "1", b"x")


LIBRARY = """-- Numbers.
local LIMIT = 9

-- Adds one.
local function increment(number)
  return number + 1
end

local function add_two(number)
  return increment(increment(number)) -- not subtract(number)
end

local function subtract(number)
  return number - 1
end
"""


#: a piece in which `recover` is rare
WITH_RARE = (
    LIBRARY
    + """
-- Recovers.
-- rare
local function recover(number)
  return add_two(subtract(number))
end
"""
)


def names(text: str) -> list[str]:
    """What a text declares, in order: functions within others with their indentation of 0."""
    return re.findall(r"^local (?:function )?(\w+)", text, re.MULTILINE)


class TestNeededFunctions:
    def test_a_function_is_kept_with_those_that_it_calls(self) -> None:
        kept = commands.with_needed(LIBRARY, "return add_two(LIMIT)")
        assert names(kept) == ["LIMIT", "increment", "add_two"]
        assert commands.with_needed(LIBRARY, "return LIMIT").count("function") == 0

    def test_what_only_a_rare_function_needs_is_inside_of_it(self) -> None:
        kept = commands.with_needed(WITH_RARE, "return increment(recover(LIMIT))")
        assert names(kept) == ["LIMIT", "increment", "recover", "add_two", "subtract"]
        recover = kept.partition("local function recover(number)\n")[2]
        assert names(recover.rpartition("  return add_two(subtract(number))\nend\n")[0]) == [
            "add_two",
            "subtract",
        ]

    def test_a_rare_function_works(self) -> None:
        text = commands.with_needed(WITH_RARE, "return recover(increment(LIMIT))")
        assert server().eval(text, 0) == 11

    @pytest.mark.parametrize("path", sorted(Path(commands.__file__).parents[1].rglob("_*.lua")))
    def test_every_function_of_a_piece_is_found(self, path: Path) -> None:
        """A function that is not found would always be kept, or swallow the next one."""
        text = path.read_text(encoding="utf-8")
        kept = commands.with_needed(text, "")
        assert "local function" not in kept
        assert re.findall(r"^local [A-Z]\w+", kept, re.MULTILINE) == re.findall(
            r"^local [A-Z]\w+", text, re.MULTILINE
        )
