"""`manage.py messaging_files`: the file channels of a site."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management import CommandError
from django.test import override_settings

from django_redis_messaging import FileChannel, LeaseLost, conf
from django_redis_messaging.devserver.server import EmbeddedServer
from tests.support.server import server
from tests.support.terminal import output_of

pytestmark = pytest.mark.one_server


def output(*arguments: str) -> str:
    return output_of("messaging_files", *arguments)[0]


def rows(*arguments: str) -> Any:
    return json.loads(output("--json", *arguments))


@pytest.fixture
def publish(tmp_path: Path) -> Any:
    """Publish two files of 5 and 2500 bytes."""

    def publish(channel: str, consumers: list[str] | int, using: str | None = None) -> FileChannel:
        paths = [tmp_path / "a.log", tmp_path / "b.log"]
        paths[0].write_bytes(b"line\n")
        paths[1].write_bytes(b"line\n" * 500)
        published = FileChannel(channel, using=using)
        published.publish(paths, consumers=consumers, max_bytes=4096)
        return published

    return publish


def consume(channel: str, consumer: str) -> None:
    """Ack the first file."""
    with closing(FileChannel(channel).consume(consumer)) as files:
        next(files).ack()


def test_no_channels() -> None:
    assert output() == "There are no file channels.\n"
    assert rows() == []


@pytest.mark.worlds
def test_channels_are_listed(publish: Any) -> None:
    publish("b: {x}", 2)
    publish("a", ["one", "two"])
    consume("a", "two")
    before = datetime.now(UTC)
    with closing(FileChannel("a").consume("two")) as files:
        next(files)
        first, second = rows()
    seen_at = first["consumers"][1].pop("seen_at")
    assert abs(datetime.fromisoformat(seen_at) - before) < timedelta(minutes=1)
    assert first == {
        "channel": "a", "files": 2, "bytes": 2505, "max_bytes": 4096, "final": False, "open_places": 0,
        "consumers": [
            {"consumer": "one", "waiting": 2, "seen_at": None, "active": False},
            {"consumer": "two", "waiting": 1, "active": True},
        ],
    }  # fmt: skip
    assert (second["channel"], second["open_places"], second["consumers"]) == ("b: {x}", 2, [])


def test_tables_are_printed(publish: Any) -> None:
    publish("logs", ["one", "two", "three"])
    consume("logs", "two")
    with closing(FileChannel("logs").consume("three")) as files:
        next(files)
        lines = [line.split() for line in output().splitlines()]
    assert lines[:4] == [
        ["channel", "files", "bytes", "max_bytes", "final", "open_places"],
        ["logs", "2", "2.4", "KiB", "4.0", "KiB", "no", "0"],
        [],
        ["channel", "consumer", "state", "waiting", "seen"],
    ]
    found = {line[1]: line[2:] for line in lines[4:]}
    assert found["one"] == ["not", "started", "2", "-"]
    assert (found["two"][:2], found["two"][-1]) == (["vanished", "1"], "ago")
    assert found["three"][:2] == ["active", "2"]


def test_named_channels(publish: Any) -> None:
    for name in ("a", "b", "c"):
        publish(name, 1)
    assert [row["channel"] for row in rows("c", "a")] == ["c", "a"]
    with pytest.raises(CommandError, match="There is no file channel 'd'"):
        output("a", "d")
    with pytest.raises(CommandError, match="channel is empty"):
        output("")


def test_names_are_escaped_for_the_terminal(publish: Any) -> None:
    publish("a\x1b[31m", ["b\n"])
    assert "a\\x1b[31m" in output()
    assert "b\\n" in output()
    assert "\x1b" not in output()
    assert rows()[0]["channel"] == "a\x1b[31m"


def test_other_keys_are_ignored(publish: Any) -> None:
    publish("a", 1)
    server().set(f"{conf.prefix()}:1:{{file:a}}:state", "x")
    assert [row["channel"] for row in rows()] == ["a"]


def test_channels_of_another_alias(publish: Any) -> None:
    with EmbeddedServer() as other:
        entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": other.url}
        with override_settings(CACHES={**settings.CACHES, "other": entry}):
            publish("logs", ["one"], using="other")
            assert rows() == []
            assert [row["channel"] for row in rows("--using", "other")] == ["logs"]
            assert [row["channel"] for row in rows("--using", "other", "logs")] == ["logs"]
            output("--using", "other", "logs", "--release", "one")
            assert rows("--using", "other")[0]["consumers"] == []
    with pytest.raises(CommandError, match="CACHES has no django-redis entry 'unknown'"):
        output("--using", "unknown")


class TestRelease:
    def test_files_no_longer_wait_for_the_consumer(self, publish: Any) -> None:
        channel = publish("logs", ["one", "two"])
        consume("logs", "one")
        assert output("logs", "--release", "two") == (
            "Released 'two': no file of the channel 'logs' waits for it.\n"
        )
        stats = channel.stats()
        assert ([one.name for one in stats.consumers], stats.files) == (["one"], 1)

    def test_an_active_consumer_is_refused(self, publish: Any) -> None:
        channel = publish("logs", ["one"])
        with closing(channel.consume("one")) as files:
            file = next(files)
            with pytest.raises(CommandError, match="'one' is active: stop its process first"):
                output("logs", "--release", "one")
            assert len(channel.stats().consumers) == 1
            output("logs", "--release", "one", "--force")
            with pytest.raises(LeaseLost):
                file.ack()
        assert channel.stats().files == 0

    def test_a_place(self, publish: Any) -> None:
        channel = publish("logs", 1)
        assert output("logs", "--release-place") == "Released a place of the channel 'logs'.\n"
        assert channel.stats().open_places == 0
        with pytest.raises(CommandError, match="The channel 'logs' has no place"):
            output("logs", "--release-place")

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            (["logs", "--release", "three"], r"has no consumer 'three' \(found: 'one', 'two'\)"),
            (["--release", "one"], "Name the channel"),
            (["logs", "logs", "--release-place"], "Name the channel"),
            (["logs", "--release", "one", "--release-place"], "can't be used together"),
            (["other", "--release", "one"], "There is no file channel 'other'"),
        ],
    )
    def test_invalid_arguments(self, arguments: list[str], text: str, publish: Any) -> None:
        channel = publish("logs", ["one", "two"])
        with pytest.raises(CommandError, match=text):
            output(*arguments)
        assert len(channel.stats().consumers) == 2

    def test_a_consumer_that_was_released_meanwhile(
        self, publish: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        publish("logs", ["one"])
        monkeypatch.setattr(FileChannel, "release", lambda *_: False)
        with pytest.raises(CommandError, match="has no consumer 'one' any more"):
            output("logs", "--release", "one")


def test_an_unreachable_server() -> None:
    entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "unix:///nonexistent/redis.sock"}
    caches, options = {**settings.CACHES, conf.alias(): entry}, settings.REDIS_MESSAGING
    with (
        override_settings(CACHES=caches, REDIS_MESSAGING={**options, "COMMAND_DEADLINE": 0.2}),
        pytest.raises(CommandError, match="Redis was not available"),
    ):
        output()
