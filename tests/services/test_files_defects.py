"""Defects of file channels that were found once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from django_redis_messaging import conf
from django_redis_messaging.core.operations import Listen, Script
from django_redis_messaging.errors import LeaseLost
from django_redis_messaging.services.files import FileChannel, Report
from django_redis_messaging.services.files.file import File, Session
from django_redis_messaging.services.files.keys import FileChannelKeys
from django_redis_messaging.services.files.publishing import Publication
from django_redis_messaging.services.files.steps import Announced

from .asking import all_keys, reply_to, server, steps

LIMIT = 10


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    for name in "ab":
        (tmp_path / name).write_text(name * LIMIT)
    return tmp_path


def channel_keys(channel: FileChannel) -> list[str]:
    return [key for key in all_keys() if key.startswith(FileChannelKeys(conf.prefix(), channel.channel).tag)]


@pytest.mark.parametrize("final", [False, True])
def test_publisher_waits_without_polling(logs: Path, final: bool) -> None:
    """Also if no file of the channel was ever freed."""
    paths = logs / "a" if final else logs
    run = Publication(paths, ["ann"], LIMIT, final, None, None)
    body, verbs = steps(FileChannel("logs")._publish, run, 1), list[str]()
    step = next(body)
    while not isinstance(step, Listen):
        verbs += [step.source.name] if isinstance(step, Script) else []
        assert len(verbs) < 10
        step = body.send(reply_to(step))
    assert verbs[-1] == ("files_close" if final else "files_reserve")
    assert verbs[-2] == "files_announce"


def test_stop_while_space_is_reserved_leaves_no_reservation(logs: Path) -> None:
    channel, stop = FileChannel("logs"), threading.Event()
    run = Publication(logs, ["ann"], 2 * LIMIT, False, None, stop)
    body, report = steps(channel._publish, run, 1), None
    step = next(body)
    try:
        while True:
            reply = reply_to(step)
            if isinstance(step, Script) and step.source.name == "files_reserve":
                stop.set()
            step = body.send(reply)
    except StopIteration as end:
        report = end.value
    stats = channel.stats()
    assert stats is not None
    assert report == Report(files=stats.files, bytes=stats.bytes, skipped=0)
    assert stats.bytes == LIMIT * stats.files


def test_channel_without_files_expires(logs: Path) -> None:
    channel = FileChannel("logs")
    channel.publish([], consumers=2)
    assert channel._next("ann", 1) is True
    assert channel_keys(channel)
    assert all(server().pttl(key) > 0 for key in channel_keys(channel))
    channel.publish(logs, consumers=["ann"], max_bytes=2 * LIMIT)
    keys = FileChannelKeys(conf.prefix(), "logs")
    assert all(server().pttl(key) < 0 for key in (keys.state, keys.positions, keys.files, keys.published))


def test_late_consumer_does_not_report_damage(logs: Path) -> None:
    """Its successor has acked the file that it reads."""
    channel, session = FileChannel("logs"), Session(FileChannel("logs"), "ann")
    channel.publish(logs / "a", consumers=["ann"], max_bytes=LIMIT)
    session.fence = 1
    found = channel._next("ann", 1)
    assert isinstance(found, Announced)
    channel._next("ann", 2)
    channel._ack("ann", 2, found.id)
    with pytest.raises(LeaseLost):
        list(File(session, found).blocks())
