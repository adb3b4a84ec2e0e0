"""The tests of a site never use its server: in separate runs, with what the server has before and after."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import django.test.runner
import django.test.utils
import pytest

from django_redis_messaging.core import testruns
from django_redis_messaging.devserver.server import EmbeddedServer

from ..support.processes import ROOT

SITE = ROOT / "tests" / "site" / "project"
#: what is to be run, and the words that say that all tests passed
MANAGE = ["manage.py", "test", "--noinput", "site_tests"]
PYTEST = ["-m", "pytest", "-p", "no:playwright", "-p", "no:asyncio", "-p", "no:cacheprovider", "-q"]

Run = Callable[..., str]


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """The server of the site. User 1 has a chat, a mailbox and an entry of the directory."""
    with EmbeddedServer() as started:
        call(started.url, "seed.py")
        with started.client() as client:
            for key in client.scan_iter():
                client.persist(key)
        yield started


def call(url: str, *words: str, code: int = 0, **environment: str) -> str:
    """Run Python on the site, as if no tests were running; returns the output."""
    inherited = {key: value for key, value in os.environ.items() if key != testruns.VARIABLE}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=SITE,
        env={
            **inherited,
            "DJANGO_SETTINGS_MODULE": "settings",
            "SITE_REDIS": url,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), inherited.get("PYTHONPATH")))),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == code, output
    return output


def content(server: EmbeddedServer) -> dict[tuple[int, bytes], object]:
    """What is stored: each key of each database."""
    found: dict[tuple[int, bytes], object] = {}
    for db in range(16):
        with server.client(db=db) as client:
            found |= {(db, key): client.dump(key) for key in client.scan_iter(count=1000)}
    return found


@pytest.fixture
def run(server: EmbeddedServer) -> Iterator[Run]:
    """Run something on the site, which must change nothing on its server."""
    before = content(server)
    assert len(before) > 5
    yield lambda *words, **options: call(server.url, *words, **options)

    assert content(server) == before


@pytest.mark.versions
@pytest.mark.parametrize(
    ("words", "environment"),
    [
        (MANAGE, {"DURABLE": "1"}),
        ([*MANAGE, "--parallel", "2"], {}),
        ([*MANAGE, "--parallel", "2"], {"START_METHOD": "spawn"}),
        (PYTEST, {}),
        ([*PYTEST, "-n", "2"], {}),
    ],
    ids=["serial", "fork", "spawn", "pytest", "xdist"],
)
def test_no_test_of_a_site_uses_its_server(run: Run, words: list[str], environment: dict[str, str]) -> None:
    output = run(*words, **environment)
    assert ("OK" in output) if words[0] == "manage.py" else ("passed" in output and "failed" not in output)


@pytest.mark.parametrize("words", [MANAGE, PYTEST])
def test_without_a_server_calls_fail_and_say_what_to_do(run: Run, words: list[str]) -> None:
    run(*words, NO_PROGRAM="1")


@pytest.mark.parametrize("words", [MANAGE, PYTEST], ids=["manage", "pytest"])
def test_tests_of_a_site_whose_server_is_down(words: list[str], tmp_path: Path) -> None:
    call(f"unix://{tmp_path}/none.sock?db=0", *words, IS_DOWN="1")


@pytest.mark.parametrize(
    "words",
    [
        MANAGE,
        [*MANAGE, "--parallel", "2"],
        [*PYTEST, "-o", "messaging_server=configured"],
        [*PYTEST, "-n", "2", "-o", "messaging_server=configured"],
    ],
    ids=["serial", "parallel", "pytest", "xdist"],
)
def test_a_run_on_the_servers_of_the_site_has_keys_of_its_own(
    server: EmbeddedServer, words: list[str]
) -> None:
    before = content(server)
    by_setting = {} if "-o" in words else {"TEST_SERVER": "configured"}
    call(server.url, *words, IS_CONFIGURED="1", **by_setting)
    assert content(server) == before


def test_the_option_comes_before_the_setting(run: Run) -> None:
    options = ["-o", "messaging_server=private", "-k", "before or post"]
    run(*PYTEST, *options, TEST_SERVER="configured")


def test_an_invalid_setting_leads_to_no_server(run: Run) -> None:
    run(*PYTEST, TEST_SERVER="mine")
    wrong = """REDIS_MESSAGING['TEST'] must be {"SERVER": "private"} or {"SERVER": "configured"}"""
    assert wrong in run(*MANAGE, code=1, TEST_SERVER="mine")


def test_outside_of_tests_the_server_of_the_site_is_used(run: Run) -> None:
    assert "unread: 1" in run("reading.py")
    assert "unread: 1, 0, 0" in run("reading.py", "setup")
    assert "no issues" in run("manage.py", "check", "--tag", "messaging")


def test_the_variable_of_a_run_that_has_ended_leads_to_no_server(run: Run, tmp_path: Path) -> None:
    variable = {testruns.VARIABLE: run("reading.py", "variable").split("variable: ")[1].strip()}
    expected = f"{testruns.VARIABLE} names a run of tests that has ended: unset it."
    assert expected in run("reading.py", code=1, **variable)
    assert "messaging.W022" in run("manage.py", "check", "--deploy", "--tag", "messaging", **variable)
    (tmp_path / "run.json").write_text("{")
    assert "is not valid: unset it" in run(
        "reading.py", code=1, **{testruns.VARIABLE: str(tmp_path / "run.json")}
    )


def test_settings_without_a_module_are_those_of_a_site_too(run: Run) -> None:
    """settings.configure() and a test runner."""
    assert "Ran 1 test" in run("configured.py")


def test_a_thread_that_a_test_leaves_does_not_reach_the_site(run: Run) -> None:
    assert "refused" in run("leaving.py")


@pytest.mark.parametrize(
    "options", [[], ["-p", "no:django", "-c", os.devnull, "--confcutdir", "."]], ids=["django", "plain"]
)
def test_calls_at_collection_and_without_pytest_django(run: Run, options: list[str]) -> None:
    assert "1 passed" in run(*PYTEST, *options, "collecting.py")


def test_processes_of_a_server_of_forks_have_the_prefix_of_their_test(run: Run) -> None:
    assert "OK" in run("manage.py", "test", "--noinput", "forkserver_tests")


def test_a_call_within_the_start_of_the_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of a signal handler: the run does not exist yet, and the site must not be used."""
    with monkeypatch.context() as patch:
        patch.setattr(testruns, "_run", None)
        patch.setattr(testruns, "_changing", True)
        with pytest.raises(RuntimeError, match="being started"):
            testruns.current()


@pytest.mark.versions
def test_internals_of_django_are_as_they_were() -> None:
    """core/testruns.py reads what setup_test_environment() sets, and the number of a parallel process."""
    assert hasattr(django.test.utils._TestState, "saved_data")
    with pytest.raises(RuntimeError, match="already called"):
        django.test.utils.setup_test_environment()
    assert django.test.runner._worker_id == 0
    assert "_worker_id = counter.value" in Path(django.test.runner.__file__).read_text(encoding="utf-8")
