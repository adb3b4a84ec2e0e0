"""`manage.py index_contacts`: fills directories from the user model, and resumes interrupted runs."""

from __future__ import annotations

import io
import logging
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.core.management import CommandError, call_command
from pytest_django import DjangoAssertNumQueries, Settings

from django_redis_messaging import Directory, MessagingError, conf, forget
from django_redis_messaging.management.commands import index_contacts
from django_redis_messaging.services.directories import indexing
from django_redis_messaging.services.directories.indexing import Progress, Run
from django_redis_messaging.services.directories.keys import indexing_key
from django_redis_messaging.web import identity
from django_redis_messaging.web.identity import Identity
from tests.support.server import all_keys, change, server
from tests.web.accounts.models import Named, Person

pytestmark = pytest.mark.django_db


class Guilds(Identity):
    """Users are in the directories of their groups; `seen` lists the ids whose labels were requested."""

    seen: list[str]
    #: called before each page is stored
    before: Callable[[], object]

    def __init__(self) -> None:
        self.seen = []
        self.before = lambda: None

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


def indexed(*words: str) -> str:
    """Run the command; returns its output."""
    out = io.StringIO()
    call_command("index_contacts", *words, stdout=out)
    return out.getvalue()


def labels(guild: str = "everyone") -> list[str]:
    return [contact.label for contact in Directory(guild).suggest("", limit=1000)]


class TestAdding:
    def test_all_users_are_added_under_their_labels(self) -> None:
        for number in range(7):
            user(f"user{number}")
        user("ann", first_name="Ann", last_name="Lee")
        out = indexed("--batch", "3")
        assert labels() == ["Ann Lee"] + [f"user{number}" for number in range(7)]
        assert Directory("everyone").suggest("lee")[0].id == str(User.objects.get(username="ann").pk)
        assert out == (
            "Indexing 8 users. Ctrl-C stops it; the next run continues.\n"
            "Done: 8 stored, 0 removed, 0 refused.\n"
        )

    def test_users_are_added_to_each_of_their_directories(self, guilds: Guilds) -> None:
        user("ann", "red", "blue")
        user("bob", "red")
        user("eve")
        assert "3 stored" in indexed()
        assert (labels("red"), labels("blue"), labels()) == (["ann", "bob"], ["ann"], [])

    def test_only_requested_directories_are_filled(self, guilds: Guilds) -> None:
        user("ann", "red", "blue", "green")
        indexed("--directory", "red", "--directory", "green")
        assert (labels("red"), labels("blue"), labels("green")) == (["ann"], [], ["ann"])

    def test_users_with_uuids_and_mail_addresses(self, settings: Settings) -> None:
        settings.AUTH_USER_MODEL = "accounts.Person"
        people = [Person.objects.create(email=f"user{number}@example.org") for number in range(7)]
        Person.objects.create(email="gone@example.org", is_active=False)
        indexed("--batch", "3")
        assert sorted(labels()) == [f"user{number}@example.org" for number in range(7)]
        assert Directory("everyone").suggest("user3")[0].id == str(people[3].pk)
        people[3].delete()
        assert "6 stored, 1 removed" in indexed("--batch", "3")
        assert len(labels()) == 6

    def test_users_with_text_keys(self, settings: Settings) -> None:
        settings.AUTH_USER_MODEL = "accounts.Named"
        for slug in ("ann", "Bob", "ü", "%", "="):
            Named.objects.create(slug=slug)
        Named.objects.create(slug="cleo", full_name="Cleo C.")
        indexed("--batch", "1")
        assert sorted(labels()) == sorted(["ann", "Bob", "ü", "%", "=", "Cleo C."])

    def test_no_users(self) -> None:
        assert indexed().endswith("Done: 0 stored, 0 removed, 0 refused.\n")


class TestRemoving:
    def test_inactive_users_are_left_out_and_removed(self) -> None:
        ann, bob = user("ann"), user("bob", is_active=False)
        user("eve", is_active=False)
        Directory("everyone").add(str(bob.pk), "bob")
        assert "1 stored, 1 removed" in indexed()
        assert labels() == ["ann"]
        User.objects.filter(pk=ann.pk).update(is_active=False)
        assert "0 stored, 1 removed" in indexed()
        assert labels() == []

    def test_deleted_users_are_removed_page_by_page(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(indexing, "PAGE_SIZE", 2)
        people = [user(f"user{number}") for number in range(7)]
        indexed()
        for one in people[1:6]:
            one.delete()
        assert "2 stored, 5 removed" in indexed()
        assert labels() == ["user0", "user6"]

    def test_users_who_changed_directories(self, guilds: Guilds) -> None:
        ann = user("ann", "red", "blue")
        indexed()
        ann.groups.set([Group.objects.get(name="blue"), Group.objects.create(name="green")])
        assert "2 stored, 1 removed" in indexed()
        assert (labels("red"), labels("blue"), labels("green")) == ([], ["ann"], ["ann"])

    def test_changed_label_is_replaced(self) -> None:
        ann = user("ann")
        indexed()
        User.objects.filter(pk=ann.pk).update(first_name="Ann", last_name="Lee")
        indexed()
        assert labels() == ["Ann Lee"]
        assert Directory("everyone").suggest("ann") == Directory("everyone").suggest("lee")

    def test_other_directories_are_not_changed(self, guilds: Guilds) -> None:
        ann = user("ann", "red", "blue")
        indexed()
        ann.delete()
        indexed("--directory", "red")
        assert (labels("red"), labels("blue")) == ([], ["ann"])
        indexed()
        assert labels("blue") == []

    def test_members_added_by_other_code_stay(self) -> None:
        user("ann")
        Directory("everyone").add("backup-bot", "Backups")
        Directory("machines").add("printer", "Printer")
        for _ in range(2):
            assert "0 removed" in indexed()
        assert (labels(), labels("machines")) == (["ann", "Backups"], ["Printer"])

    def test_strict_removes_members_added_by_other_code(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Directories without users are still not changed."""
        for number in range(600):
            Directory("everyone").add(f"deleted-{number}", f"Deleted {number}")
        user("ann")
        Directory("machines").add("printer", "Printer")
        assert "1 stored, 600 removed" in indexed("--strict")
        assert (labels(), labels("machines")) == (["ann"], ["Printer"])

    def test_forget_removes_the_mark(self) -> None:
        ann = user("ann")
        indexed()
        forget(str(ann.pk))
        assert [key for key in all_keys() if "everyone" in key] == []


class TestQueries:
    def test_number_of_queries_is_the_number_of_pages(
        self, django_assert_num_queries: DjangoAssertNumQueries
    ) -> None:
        for number in range(25):
            user(f"user{number}", is_active=number % 2 == 0)
        with django_assert_num_queries(1 + 4 + 3 + 3):  # total, pages, labels, pages again
            indexed("--batch", "10")

    def test_number_of_queries_with_directory_queries(
        self, guilds: Guilds, django_assert_num_queries: DjangoAssertNumQueries
    ) -> None:
        for number in range(25):
            user(f"user{number}", "red")
        with django_assert_num_queries(1 + 4 + 3 + 3 + 3 + 3):
            indexed("--batch", "10")


class TestResuming:
    def stop_at(self, guilds: Guilds, pages: int, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal while this page is being stored."""
        calls = iter(range(1, 1000))
        guilds.before = lambda: next(calls) == pages and os.kill(os.getpid(), number)

    def crash_at(self, guilds: Guilds, pages: int) -> None:
        calls = iter(range(1, 1000))

        def crash() -> None:
            if next(calls) == pages:
                raise RuntimeError("a crash")

        guilds.before = crash

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_first_signal_stops_after_the_page_and_the_next_run_resumes(
        self, guilds: Guilds, number: signal.Signals
    ) -> None:
        people = [user(f"user{at}", "red") for at in range(7)]
        self.stop_at(guilds, 2, number)
        with pytest.raises(CommandError, match=r"Stopped: 4 stored, 0 removed, 0 refused\. Run it") as error:
            indexed("--batch", "2")
        assert error.value.returncode == 3
        assert len(labels("red")) == 4
        assert signal.getsignal(number) == signal.SIG_DFL, "a second one would end the process"
        guilds.seen.clear()
        out = indexed("--batch", "2")
        assert guilds.seen == [str(one.pk) for one in people[4:]]
        assert out.startswith("Indexing 7 users, continuing after 4. ")
        assert "Done: 3 stored" in out
        assert len(labels("red")) == 7

    def test_run_after_a_crash_resumes(self, guilds: Guilds) -> None:
        people = [user(f"user{at}", "red") for at in range(5)]
        self.crash_at(guilds, 2)
        with pytest.raises(RuntimeError, match="a crash"):
            indexed("--batch", "2")
        guilds.before, guilds.seen = lambda: None, []
        indexed("--batch", "2")
        assert guilds.seen == [str(one.pk) for one in people[2:]]
        assert len(labels("red")) == 5

    def test_resumed_run_removes_only_members_that_no_part_has_found(self, guilds: Guilds) -> None:
        people = [user(f"user{at}", "red") for at in range(6)]
        indexed()
        people[0].delete()
        people[5].delete()
        self.crash_at(guilds, 2)
        with pytest.raises(RuntimeError):
            indexed("--batch", "2")
        assert len(labels("red")) == 6
        guilds.before = lambda: None
        assert "2 stored, 2 removed" in indexed("--batch", "2")
        assert labels("red") == ["user1", "user2", "user3", "user4"]

    @pytest.mark.parametrize("strict", [False, True])
    def test_signal_during_removal(
        self, strict: bool, guilds: Guilds, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(indexing, "PAGE_SIZE", 2)
        people = [user(f"user{at}", "red") for at in range(6)]
        indexed()
        for one in people[:5]:
            one.delete()
        for at in range(1000):  # more than one page of a scan
            Directory("red").add(f"stranger-{at}", "Stranger")
        method = "other_members" if strict else "stale_members"
        original = getattr(Progress, method)

        def signalled(self: Progress, *args: Any) -> Any:
            os.kill(os.getpid(), signal.SIGTERM)
            return original(self, *args)

        with monkeypatch.context() as patched:
            patched.setattr(Progress, method, signalled)
            with pytest.raises(CommandError, match="Stopped"):
                indexed("--strict")
        guilds.seen.clear()
        assert "Done: 0 stored" in indexed("--strict")
        assert guilds.seen == [], "all users were done"
        assert labels("red") == ["user5"]

    @pytest.mark.parametrize("why", ["fresh", "another directory", "too old"])
    def test_new_run_instead_of_resuming(
        self, why: str, guilds: Guilds, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        people = [user(f"user{at}", "red") for at in range(4)]
        self.stop_at(guilds, 1)
        with pytest.raises(CommandError):
            indexed("--batch", "2")
        guilds.seen.clear()
        if why == "too old":
            monkeypatch.setattr(indexing, "MAX_AGE", -1)
        words = {"fresh": ["--fresh"], "another directory": ["--directory", "red"]}
        assert "continuing" not in indexed(*words.get(why, []))
        assert guilds.seen == [str(one.pk) for one in people]

    def test_finished_run_is_followed_by_one_with_a_greater_number(self) -> None:
        user("ann")
        numbers = []
        for _ in range(3):
            assert "continuing" not in indexed()
            numbers.append(int(server().hget(indexing_key(conf.prefix()), "run")))
        assert numbers == sorted(set(numbers))
        server().hset(indexing_key(conf.prefix()), "run", 10**14)  # the clock was set back
        User.objects.all().delete()
        indexed()
        assert int(server().hget(indexing_key(conf.prefix()), "run")) == 10**14 + 1
        assert labels() == []

    def test_replaced_run_raises_an_error(self, guilds: Guilds) -> None:
        for at in range(4):
            user(f"user{at}", "red")
        guilds.before = lambda: Progress().begin(fresh=True)
        with pytest.raises(CommandError, match="Another index_contacts has ended or replaced this run"):
            indexed("--batch", "2")

    def test_ended_run_raises_an_error_and_ends_no_other(self) -> None:
        progress = Progress()
        run = progress.begin()
        progress.end(run)
        with pytest.raises(MessagingError, match="do not run two at the same time"):
            progress.save(run)
        following = progress.begin()
        progress.end(run)
        progress.save(following)

    def test_late_mark_of_an_earlier_run_does_not_replace_a_newer_mark(self) -> None:
        progress = Progress()
        late = progress.begin()
        run = progress.begin(fresh=True)
        progress.mark(run, "red", ["ann"])
        progress.mark(late, "red", ["ann"])
        assert progress.stale_members(run, "red") == []

    def test_user_model_replaced_during_a_run(self, settings: Settings) -> None:
        user("ann")
        run = Progress().begin()
        Progress().save(Run(run.number, "17", 1))
        settings.AUTH_USER_MODEL = "accounts.Person"
        with pytest.raises(CommandError, match="Can't resume after '17'"):
            indexed()
        indexed("--fresh")


class TestRejectedMembers:
    def test_too_long_label_does_not_stop_the_run(self, caplog: pytest.LogCaptureFixture) -> None:
        user("ann")
        long = user("x" * 150, first_name="Secret" * 25, last_name="Secret" * 25)
        user("bob")
        with pytest.raises(CommandError, match=r"^1 could not be stored; see the log\.$") as error:
            indexed()
        assert error.value.returncode == 1
        assert labels() == ["ann", "bob"]
        assert f"Adding member '{long.pk}' to directory 'everyone' failed, skipping it: label" in caplog.text
        assert "Secret" not in caplog.text

    def test_user_who_could_not_be_stored_has_no_mark(self, guilds: Guilds, settings: Settings) -> None:
        change(settings, LABEL_MAX_BYTES=10)
        user("x" * 20, "red")
        with pytest.raises(CommandError, match="1 could not be stored"):
            indexed()
        assert [key for key in all_keys() if "red" in key] == []

    def test_old_label_stays_if_the_new_one_could_not_be_stored(self, settings: Settings) -> None:
        change(settings, LABEL_MAX_BYTES=10)
        ann = user("ann")
        indexed()
        User.objects.filter(pk=ann.pk).update(first_name="x" * 20)
        with pytest.raises(CommandError, match="1 could not be stored"):
            indexed()
        assert labels() == ["ann"]
        ann.delete()
        assert "1 removed" in indexed()

    def test_crash_before_the_first_write_leaves_no_mark_behind(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ann = user("ann")
        with monkeypatch.context() as patched:
            patched.setattr(Directory, "add_many", lambda self, pairs: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                indexed()
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
            indexed()
        assert caplog.text.count("\n") <= 1
        change(settings, DIRECTORY_MAX_ENTRIES=10, LABEL_MAX_BYTES=30)
        indexed()
        assert len(labels()) == 4

    def test_invalid_ids(self, guilds: Guilds, monkeypatch: pytest.MonkeyPatch) -> None:
        user("ann", "red")
        monkeypatch.setattr(Guilds, "member_id", lambda self, user: "")
        with pytest.raises(CommandError, match="member is empty"):
            indexed()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class TestOutput:
    def test_progress_on_a_terminal(self) -> None:
        for at in range(5):
            user(f"user{at}")
        out = Terminal()
        call_command("index_contacts", "--batch", "2", stdout=out)
        lines = out.getvalue().split("\n")
        assert lines[1] == "\r2 of 5 users\r4 of 5 users\r5 of 5 users"
        assert lines[2].startswith("Done")

    def test_progress_without_a_terminal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for at in range(5):
            user(f"user{at}")
        assert " of 5 users\n" not in indexed("--batch", "2")
        monkeypatch.setattr(index_contacts, "REPORT_INTERVAL", 0.0)
        assert "2 of 5 users\n4 of 5 users\n5 of 5 users\nDone" in indexed("--batch", "2")

    def test_verbosity_0_writes_nothing(self) -> None:
        user("ann")
        assert indexed("--verbosity", "0") == ""
        assert labels() == ["ann"]

    def test_no_names_in_logs(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG, logger="django_redis_messaging")
        user("ann", first_name="Secret")
        assert "Secret" not in indexed() + caplog.text

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
            indexed(*words)
        assert text in str(error.value)
        assert "\n" not in str(error.value)

    def test_unavailable_redis_is_one_line(self, settings: Settings) -> None:
        entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "unix:///nowhere?db=0"}
        settings.CACHES = {**settings.CACHES, "nowhere": entry}
        change(settings, ALIAS="nowhere", COMMAND_DEADLINE=0.1)
        with pytest.raises(CommandError, match="Redis was not available") as error:
            indexed()
        assert "\n" not in str(error.value)


@pytest.mark.usefixtures("cluster_server")
def test_on_a_cluster(settings: Settings, guilds: Guilds) -> None:
    change(settings, ALIAS="cluster")
    ann = user("ann", "red", "blue")
    user("bob", "red")
    indexed("--batch", "1")
    assert (labels("red"), labels("blue")) == (["ann", "bob"], ["ann"])
    ann.delete()
    Directory("red").add("stranger", "Stranger")
    assert "1 stored, 3 removed" in indexed("--strict")
    assert (labels("red"), labels("blue")) == (["bob"], [])


async def test_async_versions(own_prefix: str) -> None:
    progress = Progress()
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
