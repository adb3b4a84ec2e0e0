"""Keys that another version of this app has stored in another format: the check, and `messaging_check`."""

from __future__ import annotations

import io
import json
import re
import subprocess

import pytest
from django.core.checks import CheckMessage, run_checks
from django.core.management import CommandError, call_command
from pytest_django import Settings
from redis import Redis
from redis.crc import key_slot

from django_redis_messaging import Chat, conf
from django_redis_messaging.apps import TAG
from django_redis_messaging.checks.formats import SAMPLE_PAGES, check_formats, report_formats
from django_redis_messaging.core import topology
from django_redis_messaging.core.encoding import FORMAT, tag
from django_redis_messaging.core.topology import SCAN_COUNT
from django_redis_messaging.devserver.server import EmbeddedServer, free_port
from django_redis_messaging.management.commands.messaging_check import Search
from tests.support.aliases import entry, leading_to, limited_user
from tests.support.clusters import Cluster
from tests.support.programs import program
from tests.support.server import all_keys, change, server

#: names whose characters are special for redis-cli, the shell or sed
ODD = ["a", 'say "hi"', "it's", r"back\slash", "a&b", "$HOME", "été", "☃ *", "`id`"]


def store(number: int, *names: str, prefix: str = "") -> list[str]:
    """Write keys as a version with this format did; returns them."""
    own = [tag(prefix or conf.prefix(), "chat", name) for name in names]
    keys = [key.replace(f":{FORMAT}:{{chat:", f":{number}:{{chat:") + ":members" for key in own]
    for key in keys:
        server().zadd(key, {"ann": 1})
    return keys


def commands(message: CheckMessage) -> list[str]:
    """The commands in a hint."""
    return [line.strip() for line in str(message.hint).splitlines() if line.strip().startswith("redis-cli ")]


def run(command: str) -> None:
    """Run a command of a hint in a shell. The authority of a TLS server of tests is unknown to redis-cli."""
    program("redis-cli")
    command = command.replace("--tls ", "--tls --insecure ")
    subprocess.run(["sh", "-c", command], check=True, capture_output=True)


def output(*arguments: str) -> tuple[str, str]:
    """What `messaging_check` writes to standard output and to standard error."""
    out, errors = io.StringIO(), io.StringIO()
    call_command("messaging_check", *arguments, stdout=out, stderr=errors)
    return out.getvalue(), errors.getvalue()


@pytest.mark.worlds
class TestCheck:
    def test_other_formats_are_reported(self, messaging_alias: str) -> None:
        store(FORMAT, "7")
        assert check_formats() == []
        [old], [new] = store(0, "42"), store(FORMAT + 1, "43")
        first, second = check_formats()
        assert [first.id, second.id] == ["messaging.W023"] * 2
        assert first.msg == (
            f"The Redis of CACHES[{messaging_alias!r}] has keys of format 0 under the prefix "
            f"{conf.prefix()!r}, such as {old}. This version reads format {FORMAT} only."
        )
        assert f"such as {new}. " in second.msg
        assert "set another PREFIX" in str(first.hint)

    def test_keys_of_others_are_none(self, messaging_alias: str) -> None:
        """Those of tenants, of the site, and of other prefixes."""
        prefix = conf.prefix()
        for other in (f"{prefix}:0", f"{prefix}:b", f"{prefix}b", f"b:{prefix}"):
            store(FORMAT, "1", prefix=other)
            store(0, "1", prefix=other)
        for key in (f"{prefix}:0", f"{prefix}:0:plain", f"{prefix}:0a:{{chat:1}}", f"{prefix}:v0:{{chat:1}}"):
            server().set(key, "1")
        assert check_formats() == []

    def test_the_command_of_the_hint_deletes_them(self, messaging_alias: str) -> None:
        kept = store(FORMAT, *ODD) + store(FORMAT, "1", prefix=f"{conf.prefix()}:0")
        store(0, *ODD, *map(str, range(100)))
        [message] = check_formats()
        for command in commands(message):
            run(command)
        assert all_keys() == sorted(kept)
        assert check_formats() == []

    def test_current_prefix_of_a_site_with_tenants(self, messaging_alias: str, settings: Settings) -> None:
        change(settings, PREFIX=lambda: tenant)
        tenant = "a"
        store(0, "1")
        [message] = check_formats()
        assert conf.prefix() in message.msg
        tenant = "b"
        assert check_formats() == []

    def test_sample_is_bounded(self, messaging_alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(topology, "SCAN_COUNT", 10)
        store(FORMAT, *map(str, range(500)))
        store(0, *map(str, range(500)))
        pages: list[None] = []
        [message] = report_formats(conf.alias(), pages=3, on_page=lambda: pages.append(None))
        assert len(pages) <= 3 * 3  # of up to three primaries
        assert "format 0" in message.msg
        list(report_formats(conf.alias(), on_page=lambda: pages.append(None)))
        assert len(pages) > 50


@pytest.mark.worlds
class TestCommand:
    def test_warning_of_a_healthy_site(self, messaging_alias: str) -> None:
        assert output()[1] == output("--all-keys")[1] == ""
        [key] = store(0, "42")
        for options in ([], ["--all-keys"]):
            out, errors = output(*options)
            assert out.startswith("Healthy: ")
            assert errors.startswith("Warning: The Redis of ") and f"such as {key}. " in errors
            found = json.loads(output("--json", *options)[0])
            assert (found["healthy"], found["problems"]) == (True, [])
            assert [f"Warning: {warning}\n" for warning in found["warnings"]] == [errors]
        assert output("--verbosity", "0") == ("", "")

    def test_all_keys_are_searched(self, messaging_alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """However few they are among others."""
        monkeypatch.setattr(topology, "SCAN_COUNT", 1)
        searches: list[Search] = []
        monkeypatch.setattr(Search, "__enter__", lambda self: searches.append(self) or self)
        monkeypatch.setattr(Search, "__exit__", lambda *_: None)
        store(FORMAT, *map(str, range(300)))
        [key] = store(0, "42")
        assert f"such as {key}. " in output("--all-keys")[1]
        [search] = searches
        assert search.state().done > SAMPLE_PAGES * SCAN_COUNT
        assert re.fullmatch(r"about \d+,000 keys", search.line())


def test_user_who_may_not_scan(settings: Settings) -> None:
    store(0, "42")
    with limited_user(settings, "-scan"):
        assert check_formats() == []
        assert output()[1] == ""
        with pytest.raises(
            CommandError, match=r"Unhealthy: Unavailable: The keys could not be listed: .*scan"
        ):
            output("--all-keys")


def test_deploy_check_runs_it(own_prefix: str) -> None:
    store(0, "42")
    for deploy in (False, True):
        found = run_checks(tags=[TAG], include_deployment_checks=deploy)
        assert ("messaging.W023" in [message.id for message in found]) == deploy


def test_without_a_server() -> None:
    with leading_to(entry("unix:///nonexistent/redis.sock"), COMMAND_DEADLINE=0.1):
        assert check_formats() == []


def test_command_for_a_port_and_a_database(own_prefix: str) -> None:
    port = free_port()
    with EmbeddedServer(options={"port": port}), Redis(port=port, db=3) as client:
        with leading_to(entry(f"redis://127.0.0.1:{port}/3"), PREFIX=own_prefix):
            client.set(f"{conf.prefix()}:0:{{chat:1}}:newest", "1")
            [message] = check_formats()
        [command] = commands(message)
        assert command.count(f"redis-cli -h 127.0.0.1 -p {port} -n 3 ") == 2
        run(command)
        assert client.dbsize() == 0


@pytest.mark.timing
def test_primaries_of_a_cluster(own_prefix: str) -> None:
    """The hint has a command for each; together they delete all keys of the format."""
    with Cluster() as cluster, leading_to(entry(cluster.url(0)), PREFIX=own_prefix):
        Chat.create("ann", ["bob"])
        kept = sum(client.dbsize() for client in cluster.clients)
        for number in range(60):
            key = f"{conf.prefix()}:0:{{chat:{number}}}:newest"
            cluster.clients[cluster.owner(key_slot(key.encode()))].set(key, "1")
        [message] = check_formats()
        assert len(commands(message)) == 3
        for command in commands(message):
            run(command)
        assert check_formats() == []
        assert sum(client.dbsize() for client in cluster.clients) == kept
