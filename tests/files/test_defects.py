"""Defects of file channels that were found once."""

from __future__ import annotations

import asyncio
import gzip
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from django_redis_messaging import Lock, conf
from django_redis_messaging.core.operations import Listen, Script
from django_redis_messaging.errors import (
    FileChannelError,
    InvalidArgument,
    LeaseLost,
    LimitExceeded,
    Unavailable,
    UnknownConsumer,
)
from django_redis_messaging.services.files import File, FileChannel, Report, publishing
from django_redis_messaging.services.files.channel import aleased, leased
from django_redis_messaging.services.files.keys import FileChannelKeys
from django_redis_messaging.services.files.publishing import Publication
from django_redis_messaging.services.files.received import Session

from ..support.processes import forked
from ..support.server import all_keys, change, finish, reply_to, server, server_ms, steps, until

LIMIT = 10
#: seconds
LEASE = 0.2


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
    assert verbs[-1] == ("files/close" if final else "files/reserve")
    assert verbs[-2] == "files/announce"


def test_stop_while_space_is_reserved_leaves_no_reservation(logs: Path) -> None:
    channel, stop = FileChannel("logs"), threading.Event()
    run = Publication(logs, ["ann"], 2 * LIMIT, False, None, stop)
    body, report = steps(channel._publish, run, 1), None
    step = next(body)
    try:
        while True:
            reply = reply_to(step)
            if isinstance(step, Script) and step.source.name == "files/reserve":
                stop.set()
            step = body.send(reply)
    except StopIteration as end:
        report = end.value
    stats = channel.stats()
    assert stats is not None
    assert report == Report(files=stats.files, bytes=stats.bytes, skipped=0, completed=False)
    assert stats.bytes == LIMIT * stats.files


def test_channel_without_files_expires(logs: Path) -> None:
    channel = FileChannel("logs")
    channel.publish([], consumers=2)
    session = Session("ann")
    reply_to(next(steps(channel._next, session)))  # it takes a place
    assert channel_keys(channel)
    assert all(server().pttl(key) > 0 for key in channel_keys(channel))
    channel.publish(logs, consumers=2, max_bytes=2 * LIMIT)
    keys = FileChannelKeys(conf.prefix(), "logs")
    assert all(server().pttl(key) < 0 for key in (keys.state, keys.positions, keys.files, keys.published))


def test_late_consumer_does_not_report_damage(logs: Path) -> None:
    """Its successor has acked the file that it reads."""
    channel, session, successor = FileChannel("logs"), Session("ann"), Session("ann")
    channel.publish(logs / "a", consumers=["ann"], max_bytes=LIMIT)
    session.fence, successor.fence = 1, 2
    found = channel._next(session)
    assert found is not None
    channel._next(successor)
    channel._ack(successor, found.id)
    with pytest.raises(LeaseLost):
        list(File(channel, session, found).blocks())


def first(channel: FileChannel, consumer: str) -> File:
    """The first file of a consumer, whose process then ends without an ack."""
    with closing(channel.consume(consumer)) as files:
        return next(files)


def received(channel: FileChannel, consumer: str) -> list[bytes]:
    """The contents of the files of a consumer, until the end of the channel."""
    found = []
    for file in channel.consume(consumer):
        found.append(b"".join(file.blocks()))
        file.ack()
    return found


def test_files_with_equal_names_and_contents_are_two_files(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "access.log").write_bytes(b"equal")
    channel = FileChannel("logs")
    channel.publish([tmp_path / "a", tmp_path / "b"], consumers=["ann", "bob"])
    with ThreadPoolExecutor() as pool:
        contents = [pool.submit(received, channel, name) for name in ("ann", "bob")]
        channel.publish([], consumers=["ann", "bob"], final=True)
    assert [one.result() for one in contents] == 2 * [[b"equal", b"equal"]]
    assert not any("{file:" in key for key in all_keys())


def test_repeat_of_an_announcement_after_a_takeover(logs: Path) -> None:
    """The reply was lost, the lease ended, and another publisher began: the file remains announced."""
    channel = FileChannel("logs")
    run = Publication(logs / "a", ["ann"], LIMIT, False, None, None)
    body = steps(channel._publish, run, 1)
    step = next(body)
    while not (isinstance(step, Script) and step.source.name == "files/announce"):
        step = body.send(reply_to(step))
    reply_to(step)
    assert channel.publish(logs / "a", consumers=["ann"], max_bytes=LIMIT).skipped == 1
    with pytest.raises(StopIteration):
        body.send(reply_to(step))
    assert list(first(channel, "ann").lines()) == [b"a" * LIMIT]


def test_consumer_ends_before_the_next_channel_of_the_same_name(logs: Path) -> None:
    channel = FileChannel("logs")
    with closing(channel.consume("ann")) as files:
        channel.publish(logs / "a", consumers=["ann", "bob"])
        next(files).ack()
        channel.release("bob")
        channel.publish([], consumers=["ann"], final=True)
        channel.publish(logs, consumers=["ann", "bob"])
        assert next(files, None) is None
    assert first(channel, "ann").name == "a"


def test_channel_whose_final_publisher_was_killed_can_be_used_again(logs: Path) -> None:
    channel = FileChannel("logs")
    with ThreadPoolExecutor() as pool:
        body = steps(channel._publish, Publication(logs / "a", ["ann"], LIMIT, True, None, None), 1)
        step = next(body)
        while not (isinstance(step, Script) and step.source.name == "files/close"):
            step = body.send(reply_to(step))
        reply_to(step)  # the publisher dies
        assert pool.submit(received, channel, "ann").result() == [b"a" * LIMIT]
    report = channel.publish(logs, consumers=["ann"])
    assert (report.files, report.skipped) == (1, 1)
    assert first(channel, "ann").name == "b"


def test_names_take_the_open_places_of_a_number(logs: Path) -> None:
    channel = FileChannel("logs")
    channel.publish(logs / "a", consumers=2)
    with pytest.raises(FileChannelError, match="has the consumers 2 more"):
        channel.publish(logs / "b", consumers=["ann"])
    with pytest.raises(FileChannelError, match="has the consumers 2 more"):
        channel.publish(logs / "b", consumers=1)
    channel.publish(logs / "b", consumers=["ann", "bob", "cid"])
    assert [first(channel, name).name for name in ("ann", "bob", "cid")] == ["a", "a", "b"]


def test_misnamed_consumer_of_a_final_channel_is_refused(logs: Path) -> None:
    channel, stop = FileChannel("logs"), threading.Event()
    channel.publish(
        logs, consumers=["ann"], final=True, on_progress=lambda one: one.waiting and stop.set(), stop=stop
    )
    with pytest.raises(UnknownConsumer):
        first(channel, "anne")


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_paths_that_name_nothing(path: str) -> None:
    with pytest.raises(InvalidArgument, match="not the name of a file or a directory"):
        FileChannel("logs").publish(path, consumers=["ann"])


@pytest.mark.parametrize("paths", [b"/tmp", [b"/tmp"], [7]])
def test_paths_of_other_types(paths: Any) -> None:
    with pytest.raises(TypeError):
        FileChannel("logs").publish(paths, consumers=["ann"])


def test_last_file_is_acked_twice(logs: Path) -> None:
    channel = FileChannel("logs")
    channel.publish(logs / "a", consumers=["ann"])
    with ThreadPoolExecutor() as pool, closing(channel.consume("ann")) as files:
        file = next(files)
        pool.submit(channel.publish, [], consumers=["ann"], final=True)
        until(lambda: (found := channel.stats()) and found.final)
        file.ack()
        file.ack()
        with pytest.raises(FileChannelError, match="was acked and may be deleted"):
            list(file.lines())


def test_ids_grow_although_the_clock_was_set_back(logs: Path) -> None:
    """The fence of the publisher's lease is ahead of the clock."""
    channel, fence = FileChannel("logs"), 2 * server_ms() * 1000
    body = steps(channel._publish, Publication(logs / "a", ["ann"], LIMIT, False, None, None), fence)
    finish(body, next(body))
    assert first(channel, "ann").id > fence


def test_stop_ends_the_wait_for_a_lease(logs: Path) -> None:
    channel, stop = FileChannel("logs"), threading.Event()
    channel.publish(logs, consumers=["ann"])
    stop.set()
    with closing(channel.consume("ann")) as files:
        next(files)
        assert list(channel.consume("ann", stop=stop)) == []
    report = channel.publish(logs, consumers=["ann"], stop=stop)
    assert (report.files, report.skipped, report.completed) == (0, 0, False)


def test_a_fork_does_not_release_the_lease(logs: Path) -> None:
    channel = FileChannel("logs")
    channel.publish(logs, consumers=["ann"])
    files = channel.consume("ann")
    file = next(files)
    with forked(lambda: files.close() is None) as succeeded:
        assert succeeded()
    stats = channel.stats()
    assert stats is not None
    assert stats.consumers[0].active
    file.ack()
    files.close()


async def test_the_error_of_a_block_is_not_replaced_by_that_of_the_release(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(lock: Lock, token: bytes) -> Any:
        raise Unavailable("away")

    monkeypatch.setattr(Lock, "_release", fail)
    with pytest.raises(ZeroDivisionError), leased(Lock("one"), "publishes", None):
        raise ZeroDivisionError
    with pytest.raises(asyncio.CancelledError):
        async with aleased(Lock("other"), "publishes", None):
            raise asyncio.CancelledError
    assert caplog.text.count("was not released: away") == 2
    with pytest.raises(Unavailable), leased(Lock("third"), "publishes", None):
        pass


def test_compression_is_detected_in_blocks_of_one_byte(tmp_path: Path, settings: Any) -> None:
    change(settings, FILES_BLOCK_BYTES=1)
    (tmp_path / "log.1").write_bytes(gzip.compress(b"line"))
    FileChannel("logs").publish(tmp_path, consumers=["ann"])
    assert list(first(FileChannel("logs"), "ann").lines()) == [b"line"]


def test_more_files_than_are_remembered(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "REMEMBERED", 1)
    with pytest.raises(LimitExceeded, match="files of one call: 2 is over the limit of 1"):
        FileChannel("logs").publish(logs, consumers=["ann"])


def test_leases_and_locks_have_different_names(logs: Path) -> None:
    channel = FileChannel("logs")
    with Lock("files:logs"), Lock("files:logs:ann"):
        channel.publish(logs, consumers=["ann"], lease=LEASE)
        assert first(channel, "ann").name == "a"
