"""Loading Lua files."""

import hashlib

import pytest

from django_redis_messaging.core import scripts
from django_redis_messaging.core.steps import Script
from tests.core.things import SCRIPTS

pytestmark = pytest.mark.versions


def test_used_files_come_before_the_script() -> None:
    source = scripts.load("thing_add")
    assert source.text == SCRIPTS["_thing"] + "\n" + SCRIPTS["thing_add"]
    assert source.sha == hashlib.sha1(source.text.encode(), usedforsecurity=False).hexdigest()


def test_reads_only_is_detected() -> None:
    assert scripts.load("thing_get").reads_only
    assert not scripts.load("thing_add").reads_only


def test_a_script_is_read_once() -> None:
    assert scripts.load("thing_get") is scripts.load("thing_get")


def test_a_missing_script_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        scripts.load("no_such_script")


def test_the_words_of_a_call() -> None:
    call = Script("thing_add", ["k"], [1, b"x"])
    sha = scripts.load("thing_add").sha
    assert call.words == ("EVALSHA", sha, "1", "k", "1", b"x")
    assert call.in_full == ("EVAL", scripts.load("thing_add").text, "1", "k", "1", b"x")
