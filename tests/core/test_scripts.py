"""Loading Lua files."""

import hashlib
import re
from pathlib import Path

import pytest

from django_redis_messaging.core import commands
from django_redis_messaging.core.commands import Script
from tests.support.things import SCRIPTS

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


class TestUnusedFunctions:
    def test_a_function_is_kept_with_those_that_it_calls(self) -> None:
        kept = commands.without_unused(LIBRARY, "return add_two(LIMIT)")
        assert re.findall(r"local (?:function )?(\w+)", kept) == ["LIMIT", "increment", "add_two"]
        assert commands.without_unused(LIBRARY, "return LIMIT").count("function") == 0

    @pytest.mark.parametrize("path", sorted(Path(commands.__file__).parents[1].rglob("_*.lua")))
    def test_every_function_of_a_piece_is_found(self, path: Path) -> None:
        """A function that is not found would always be kept, or swallow the next one."""
        text = path.read_text(encoding="utf-8")
        kept = commands.without_unused(text, "")
        assert "local function" not in kept
        assert re.findall(r"^local [A-Z]\w+", kept, re.MULTILINE) == re.findall(
            r"^local [A-Z]\w+", text, re.MULTILINE
        )
