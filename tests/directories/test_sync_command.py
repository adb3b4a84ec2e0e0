"""`manage.py sync_directory`: makes directories equal to the user model, and resumes interrupted runs."""

from __future__ import annotations

import io
import itertools
import logging
import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import pytest
from django.contrib.auth.models import Group, User
from django.core.management import CommandError, call_command
from pytest_django import DjangoAssertNumQueries, Settings

from django_redis_messaging import Directory, MessagingError, Unavailable, conf, forget
from django_redis_messaging.management import output
from django_redis_messaging.services.directories import directory
from django_redis_messaging.services.directories.directory import Run, SyncProgress, indexing_key
from django_redis_messaging.web import identity
from django_redis_messaging.web.identity import Identity
from tests.support.missing_packages import without_pypinyin
from tests.support.server import all_keys, change, server, until
from tests.web.accounts.models import Named, Person

pytestmark = [pytest.mark.one_server, pytest.mark.django_db]


class Guilds(Identity):
    """Users are in the directories of their groups; `seen` lists the ids whose labels were requested."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        #: called before each page is stored
        self.before: Callable[[], object] = lambda: None

    def at_page(self, number: int, action: Callable[[], object]) -> None:
        """Call `action` while this page is being stored."""
        pages = itertools.count(1)
        self.before = lambda: next(pages) == number and action()

    def begin_anew(self) -> None:
        self.before, self.seen = lambda: None, []

    def users(self) -> Any:
        return super().users().prefetch_related("groups")

    def directories(self, user: Any) -> Sequence[str]:
        return [group.name for group in user.groups.all()]

    def labels(self, ids: Any) -> dict[str, str]:
        self.before()
        self.seen += ids
        return super().labels(ids)


@pytest.fixture
def guilds(settings: Settings) -> Guilds:
    """Use an Identity for which groups are directories."""
    change(settings, IDENTITY=f"{__name__}.Guilds")
    found = identity.current()
    assert isinstance(found, Guilds)
    return found


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """Restore the signal handlers after the test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def user(name: str, *groups: str, **fields: Any) -> User:
    made = User.objects.create(username=name, **fields)
    made.groups.set([Group.objects.get_or_create(name=group)[0] for group in groups])
    return made


def sync(*words: str) -> str:
    """Run the command; returns its output."""
    out = io.StringIO()
    call_command("sync_directory", *words, stdout=out, stderr=io.StringIO())
    return out.getvalue()


def sync_and_keep(*words: str) -> str:
    """Run the command so that it removes only members that an earlier run has added; returns its output."""
    return sync("--keep", *words)


def labels(guild: str = "everyone") -> list[str]:
    return [contact.label for contact in Directory(guild).suggest("", limit=1000)]


class TestEquality:
    def test_directories_become_equal_to_the_user_model(self, guilds: Guilds) -> None:
        ann, bob = user("ann", "red"), user("bob", "red", "blue")
        cat, dan = user("cat", "red"), user("dan", "blue")
        sync("--batch", "2")
        assert (labels("red"), labels("blue")) == (["ann", "bob", "cat"], ["bob", "dan"])
        Directory("red").add("stranger", "Stranger")
        User.objects.filter(pk=ann.pk).update(is_active=False)
        User.objects.filter(pk=bob.pk).update(first_name="Robert")
        bob.groups.set(Group.objects.filter(name="blue"))
        cat.groups.add(Group.objects.get(name="blue"))
        dan.delete()
        sync("--batch", "2")
        assert (labels("red"), labels("blue")) == (["cat"], ["cat", "Robert"])

    def test_unchanged_labels_get_spellings_after_pypinyin_was_installed(self) -> None:
        user("u1", last_name="王小明")
        with without_pypinyin():
            sync()
            assert Directory("everyone").suggest("wang") == []
        sync()
        assert [contact.label for contact in Directory("everyone").suggest("wang")] == ["王小明"]


class TestAdding:
    def test_all_users_are_added_under_their_labels(self) -> None:
        assert sync_and_keep().endswith("Done: 0 stored, 0 removed, 0 refused.\n")
        for number in range(7):
            user(f"user{number}")
        user("ann", first_name="Ann", last_name="Lee")
        out = sync_and_keep("--batch", "3")
        assert labels() == ["Ann Lee"] + [f"user{number}" for number in range(7)]
        assert Directory("everyone").suggest("lee")[0].id == str(User.objects.get(username="ann").pk)
        assert out == (
            "Indexing 8 users. Ctrl-C stops it; the next run continues.\n"
            "Done: 8 stored, 0 removed, 0 refused.\n"
        )

    def test_users_are_added_to_each_of_their_directories(self, guilds: Guilds) -> None:
        user("ann", "red", "blue", "green")
        user("bob", "red")
        user("eve")
        sync_and_keep("--directory", "red", "--directory", "green")
        assert (labels("red"), labels("blue"), labels("green")) == (["ann", "bob"], [], ["ann"])
        assert "4 stored" in sync_and_keep()
        assert (labels("red"), labels("blue"), labels()) == (["ann", "bob"], ["ann"], [])

    def test_users_with_uuids_and_mail_addresses(self, settings: Settings) -> None:
        settings.AUTH_USER_MODEL = "accounts.Person"
        people = [Person.objects.create(email=f"user{number}@example.org") for number in range(7)]
        Person.objects.create(email="gone@example.org", is_active=False)
        sync_and_keep("--batch", "3")
        assert sorted(labels()) == [f"user{number}@example.org" for number in range(7)]
        assert Directory("everyone").suggest("user3")[0].id == str(people[3].pk)
        people[3].delete()
        assert "6 stored, 1 removed" in sync_and_keep("--batch", "3")
        assert len(labels()) == 6

    def test_users_with_text_keys(self, settings: Settings) -> None:
        settings.AUTH_USER_MODEL = "accounts.Named"
        for slug in ("ann", "Bob", "ü", "%", "="):
            Named.objects.create(slug=slug)
        Named.objects.create(slug="cleo", full_name="Cleo C.")
        sync_and_keep("--batch", "1")
        assert sorted(labels()) == sorted(["ann", "Bob", "ü", "%", "=", "Cleo C."])


class TestRemoving:
    def test_inactive_and_deleted_users_are_removed_page_by_page(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(directory, "PAGE_SIZE", 2)
        people = [user(f"user{number}") for number in range(7)]
        away = user("away", is_active=False)
        Directory("everyone").add(str(away.pk), "away")
        assert "7 stored, 1 removed" in sync_and_keep()
        for one in people[1:6]:
            one.delete()
        assert "2 stored, 5 removed" in sync_and_keep()
        assert labels() == ["user0", "user6"]
        User.objects.filter(pk=people[0].pk).update(is_active=False)
        assert "1 stored, 1 removed" in sync_and_keep()
        assert labels() == ["user6"]

    def test_users_who_changed_directories_and_their_label(self, guilds: Guilds) -> None:
        ann = user("ann", "red", "blue")
        sync_and_keep()
        User.objects.filter(pk=ann.pk).update(first_name="Ann", last_name="Lee")
        ann.groups.set([Group.objects.get(name="blue"), Group.objects.create(name="green")])
        assert "2 stored, 1 removed" in sync_and_keep()
        assert (labels("red"), labels("blue"), labels("green")) == ([], ["Ann Lee"], ["Ann Lee"])
        assert Directory("blue").suggest("ann") == Directory("blue").suggest("lee")

    def test_other_directories_are_not_changed(self, guilds: Guilds) -> None:
        ann = user("ann", "red", "blue")
        sync_and_keep()
        ann.delete()
        sync_and_keep("--directory", "red")
        assert (labels("red"), labels("blue")) == ([], ["ann"])
        sync_and_keep()
        assert labels("blue") == []

    def test_members_added_by_other_code_are_kept_only_if_wanted(self) -> None:
        """Directories without users are never changed."""
        user("ann")
        Directory("everyone").add("backup-bot", "Backups")
        Directory("machines").add("printer", "Printer")
        for _ in range(2):
            assert "0 removed" in sync_and_keep()
        assert (labels(), labels("machines")) == (["ann", "Backups"], ["Printer"])
        Directory("everyone").add_many((f"deleted-{number}", f"Deleted {number}") for number in range(599))
        assert "1 stored, 600 removed" in sync()
        assert (labels(), labels("machines")) == (["ann"], ["Printer"])

    def test_forget_removes_the_mark(self) -> None:
        ann = user("ann")
        sync_and_keep()
        forget(str(ann.pk))
        assert [key for key in all_keys() if "everyone" in key] == []


@pytest.mark.parametrize(("in_guilds", "queries"), [(False, 11), (True, 17)])
def test_number_of_queries_is_the_number_of_pages(
    in_guilds: bool,
    queries: int,
    request: pytest.FixtureRequest,
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    if in_guilds:
        request.getfixturevalue("guilds")
    for number in range(25):
        user(f"user{number}", *(["red"] if in_guilds else []), is_active=in_guilds or number % 2 == 0)
    # total, pages, labels, pages again, and the groups of each page
    with django_assert_num_queries(queries):
        sync_and_keep("--batch", "10")


class TestResuming:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_first_signal_stops_after_the_page_and_the_next_run_resumes(
        self, guilds: Guilds, number: signal.Signals
    ) -> None:
        people = [user(f"user{at}", "red") for at in range(7)]
        guilds.at_page(2, lambda: os.kill(os.getpid(), number))
        with pytest.raises(CommandError, match=r"Stopped: 4 stored, 0 removed, 0 refused\. Run it") as error:
            sync_and_keep("--batch", "2")
        assert error.value.returncode == 3
        assert len(labels("red")) == 4
        assert signal.getsignal(number) == signal.SIG_DFL, "a second one would end the process"
        guilds.seen.clear()
        out = sync_and_keep("--batch", "2")
        assert guilds.seen == [str(one.pk) for one in people[4:]]
        assert out.startswith("Indexing 7 users, continuing after 4. ")
        assert "Done: 3 stored" in out
        assert len(labels("red")) == 7

    @pytest.mark.parametrize("error", [RuntimeError("gone"), Unavailable("gone")])
    def test_run_after_a_crash_resumes(self, guilds: Guilds, error: Exception) -> None:
        people = [user(f"user{at}", "red") for at in range(5)]
        Directory("red").add("stranger", "Stranger")
        guilds.at_page(2, mock.Mock(side_effect=error))
        with pytest.raises((RuntimeError, CommandError), match="gone"):
            sync("--batch", "2")
        assert labels("red") == ["Stranger", "user0", "user1"]
        guilds.begin_anew()
        sync("--batch", "2")
        assert guilds.seen == [str(one.pk) for one in people[2:]]
        assert labels("red") == [f"user{at}" for at in range(5)]

    def test_resumed_run_removes_only_members_that_no_part_has_found(self, guilds: Guilds) -> None:
        people = [user(f"user{at}", "red") for at in range(6)]
        sync_and_keep()
        people[0].delete()
        people[5].delete()
        guilds.at_page(2, mock.Mock(side_effect=RuntimeError))
        with pytest.raises(RuntimeError):
            sync_and_keep("--batch", "2")
        assert len(labels("red")) == 6
        guilds.begin_anew()
        assert "2 stored, 2 removed" in sync_and_keep("--batch", "2")
        assert labels("red") == ["user1", "user2", "user3", "user4"]

    @pytest.mark.parametrize("method", ["stale_members", "other_members"])
    def test_signal_during_removal(
        self, method: str, guilds: Guilds, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(directory, "PAGE_SIZE", 2)
        people = [user(f"user{at}", "red") for at in range(6)]
        sync_and_keep()
        for one in people[:5]:
            one.delete()
        # more than one page of a scan
        Directory("red").add_many((f"stranger-{at}", "Stranger") for at in range(1000))
        original = getattr(SyncProgress, method)

        def signalled(self: SyncProgress, *args: Any) -> Any:
            os.kill(os.getpid(), signal.SIGTERM)
            return original(self, *args)

        with monkeypatch.context() as patched:
            patched.setattr(SyncProgress, method, signalled)
            with pytest.raises(CommandError, match="Stopped"):
                sync()
        guilds.seen.clear()
        assert "Done: 0 stored" in sync()
        assert guilds.seen == [], "all users were done"
        assert labels("red") == ["user5"]

    @pytest.mark.parametrize("why", ["fresh", "another directory", "too old"])
    def test_new_run_instead_of_resuming(
        self, why: str, guilds: Guilds, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        people = [user(f"user{at}", "red") for at in range(4)]
        guilds.at_page(1, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(CommandError):
            sync_and_keep("--batch", "2")
        guilds.seen.clear()
        if why == "too old":
            monkeypatch.setattr(directory, "MAX_RUN_AGE", -1)
        words = {"fresh": ["--fresh"], "another directory": ["--directory", "red"]}
        assert "continuing" not in sync_and_keep(*words.get(why, []))
        assert guilds.seen == [str(one.pk) for one in people]

    def test_finished_run_is_followed_by_one_with_a_greater_number(self) -> None:
        user("ann")
        numbers = []
        for _ in range(3):
            assert "continuing" not in sync_and_keep()
            numbers.append(int(server().hget(indexing_key(conf.prefix()), "run")))
        assert numbers == sorted(set(numbers))
        server().hset(indexing_key(conf.prefix()), "run", 10**14)  # the clock was set back
        User.objects.all().delete()
        sync_and_keep()
        assert int(server().hget(indexing_key(conf.prefix()), "run")) == 10**14 + 1
        assert labels() == []

    def test_replaced_run_raises_an_error(self, guilds: Guilds) -> None:
        for at in range(4):
            user(f"user{at}", "red")
        guilds.before = lambda: SyncProgress().begin(fresh=True)
        with pytest.raises(CommandError, match="Another sync_directory has ended or replaced this run"):
            sync_and_keep("--batch", "2")

    def test_an_ended_or_replaced_run_changes_nothing(self) -> None:
        progress = SyncProgress()
        ended = progress.begin()
        progress.end(ended)
        with pytest.raises(MessagingError, match="do not run two at the same time"):
            progress.save(ended)
        late = progress.begin()
        progress.end(ended)
        progress.save(late)
        run = progress.begin(fresh=True)
        progress.mark(run, "red", ["ann"])
        progress.mark(late, "red", ["ann"])
        assert progress.stale_members(run, "red") == []

    def test_user_model_replaced_during_a_run(self, settings: Settings) -> None:
        user("ann")
        run = SyncProgress().begin()
        SyncProgress().save(Run(run.number, "17", 1))
        settings.AUTH_USER_MODEL = "accounts.Person"
        with pytest.raises(CommandError, match="Can't resume after '17'"):
            sync_and_keep()
        sync_and_keep("--fresh")


class TestRejectedMembers:
    def test_too_long_label_does_not_stop_the_run(self, caplog: pytest.LogCaptureFixture) -> None:
        user("ann")
        long = user("x" * 150, first_name="Secret" * 25, last_name="Secret" * 25)
        user("bob")
        with pytest.raises(CommandError, match=r"^1 could not be stored; see the log\.$") as error:
            sync_and_keep()
        assert error.value.returncode == 1
        assert labels() == ["ann", "bob"]
        assert f"Adding member '{long.pk}' to directory 'everyone' failed, skipping it: label" in caplog.text
        assert "Secret" not in caplog.text

    def test_old_label_stays_and_a_user_who_was_never_stored_has_no_mark(
        self, guilds: Guilds, settings: Settings
    ) -> None:
        change(settings, LABEL_MAX_BYTES=10, IDENTITY=f"{__name__}.Guilds")
        ann = user("ann", "red")
        sync_and_keep()
        User.objects.filter(pk=ann.pk).update(first_name="x" * 20)
        user("x" * 20, "blue")
        with pytest.raises(CommandError, match="2 could not be stored"):
            sync_and_keep()
        assert labels("red") == ["ann"]
        assert [key for key in all_keys() if "blue" in key] == []
        ann.delete()
        with pytest.raises(CommandError, match="1 could not be stored"):
            sync_and_keep()
        assert labels("red") == []

    def test_crash_before_the_first_write_leaves_no_mark_behind(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ann = user("ann")
        with monkeypatch.context() as patched:
            patched.setattr(Directory, "add_many", lambda self, pairs: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                sync_and_keep()
        forget(str(ann.pk))
        assert [key for key in all_keys() if "everyone" in key] == []

    @pytest.mark.parametrize("first", ["ann", "x" * 20])
    def test_full_directory_is_reported_once(
        self, first: str, settings: Settings, caplog: pytest.LogCaptureFixture
    ) -> None:
        change(settings, DIRECTORY_MAX_ENTRIES=2, LABEL_MAX_BYTES=10)
        for name in (first, "bob", "cleo", "dan"):
            user(name)
        with pytest.raises(CommandError, match="entries in directory 'everyone'"):
            sync_and_keep()
        assert caplog.text.count("\n") <= 1
        change(settings, DIRECTORY_MAX_ENTRIES=10, LABEL_MAX_BYTES=30)
        sync_and_keep()
        assert len(labels()) == 4

    def test_invalid_ids(self, guilds: Guilds, monkeypatch: pytest.MonkeyPatch) -> None:
        user("ann", "red")
        monkeypatch.setattr(Guilds, "member_id", lambda self, user: "")
        with pytest.raises(CommandError, match="member is empty"):
            sync_and_keep()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class TestOutput:
    @pytest.mark.parametrize(
        ("terminal", "shown"), [(True, "{}/5 ["), (False, "Indexing users: {} of 5 users, ")]
    )
    def test_progress(
        self, terminal: bool, shown: str, guilds: Guilds, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for at in range(5):
            user(f"user{at}", "red")
        monkeypatch.setattr(output, "BAR_INTERVAL" if terminal else "LINE_INTERVAL", 0.002)
        errors, pages = Terminal() if terminal else io.StringIO(), iter([0, 2, 4])

        def wait() -> None:
            text = shown.format(next(pages))
            until(lambda: text in errors.getvalue())

        guilds.before = wait
        call_command("sync_directory", "--batch", "2", stdout=io.StringIO(), stderr=errors)
        if terminal:
            assert "\r2 stored, 0 removed:  40%|" in errors.getvalue()
            assert re.search(r"\r +\r$", errors.getvalue()), "the bar is removed"
        else:
            assert "Indexing users: 2 of 5 users, 2 stored, 0 removed\n" in errors.getvalue()

    def test_no_names_in_logs_and_nothing_with_verbosity_0(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG, logger="django_redis_messaging")
        user("ann", first_name="Secret")
        assert sync_and_keep("--verbosity", "0") == ""
        assert labels() == ["Secret"]
        assert "Secret" not in sync_and_keep() + caplog.text

    @pytest.mark.parametrize(
        ("words", "text"),
        [
            (["--batch", "0"], "--batch must be between 1 and 1000"),
            (["--batch", "1001"], "--batch must be between 1 and 1000"),
            (["--batch", "many"], "invalid int value: 'many'"),
            (["--directory", ""], "guild is empty"),
        ],
    )
    def test_bad_options(self, words: list[str], text: str) -> None:
        with pytest.raises(CommandError) as error:
            sync_and_keep(*words)
        assert text in str(error.value)
        assert "\n" not in str(error.value)

    def test_unavailable_redis_is_one_line(self, settings: Settings) -> None:
        entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "unix:///nowhere?db=0"}
        settings.CACHES = {**settings.CACHES, "nowhere": entry}
        change(settings, ALIAS="nowhere", COMMAND_DEADLINE=0.1)
        with pytest.raises(CommandError, match="Redis was not available") as error:
            sync_and_keep()
        assert "\n" not in str(error.value)


@pytest.mark.usefixtures("cluster_server")
def test_on_a_cluster(settings: Settings, guilds: Guilds) -> None:
    change(settings, ALIAS="cluster")
    ann = user("ann", "red", "blue")
    user("bob", "red")
    sync_and_keep("--batch", "1")
    assert (labels("red"), labels("blue")) == (["ann", "bob"], ["ann"])
    ann.delete()
    Directory("red").add("stranger", "Stranger")
    assert "1 stored, 3 removed" in sync()
    assert (labels("red"), labels("blue")) == (["bob"], [])


async def test_async_versions(own_prefix: str) -> None:
    progress = SyncProgress()
    run = await progress.abegin(["red"])
    await progress.amark(run, "red", ["ann"])
    await Directory("red").aadd_many([("ann", "Ann"), ("bob", "Bob")])
    await progress.asave(Run(run.number, "ann", 1))
    assert await progress.abegin(["red"]) == Run(run.number, "ann", 1)
    assert await progress.aguilds() == ["red"]
    assert await progress.aother_members(run, "red") == ("0", ["bob"])
    assert await progress.astale_members(Run(run.number + 1, None, 0), "red") == ["ann"]
    await Directory("red").aremove_many(["ann", "bob"])
    await progress.aend(run)
    assert (await progress.abegin(["red"])).after is None
