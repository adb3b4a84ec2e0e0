"""`manage.py index_contacts`: directories hold whom the user model says, and go on where they were."""

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
from django_redis_messaging.core import keys
from django_redis_messaging.management.commands import index_contacts
from django_redis_messaging.services import indexing
from django_redis_messaging.services.indexing import Progress, Run
from django_redis_messaging.web import identity
from django_redis_messaging.web.identity import Identity
from tests.services.asking import all_keys, change, server
from tests.web.accounts.models import Named, Person

pytestmark = pytest.mark.django_db


class Guilds(Identity):
    """Users are in the directories of their groups; `seen` are the ids whose labels were asked for."""

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
    """The site's Identity, where groups are directories."""
    change(settings, IDENTITY=f"{__name__}.Guilds")
    found = identity.current()
    assert isinstance(found, Guilds)
    return found


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """Signals do afterwards what they did before."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def user(name: str, *groups: str, **fields: Any) -> User:
    made = User.objects.create(username=name, **fields)
    made.groups.set([Group.objects.get_or_create(name=group)[0] for group in groups])
    return made


def indexed(*words: str) -> str:
    """What the command says."""
    out = io.StringIO()
    call_command("index_contacts", *words, stdout=out)
    return out.getvalue()


def labels(guild: str = "everyone") -> list[str]:
    return [contact.label for contact in Directory(guild).suggest("", limit=1000)]


class TestWhoIsThere:
    def test_everybody_under_their_label(self) -> None:
        for number in range(7):
            user(f"user{number}")
        user("ann", first_name="Ann", last_name="Lee")
        out = indexed("--batch", "3")
        assert labels() == ["Ann Lee"] + [f"user{number}" for number in range(7)]
        assert Directory("everyone").suggest("lee")[0].id == str(User.objects.get(username="ann").pk)
        assert out == (
            "Indexing 8 users. Ctrl-C stops it; run again, it goes on.\n"
            "Done: 8 stored, 0 removed, 0 refused.\n"
        )

    def test_in_each_of_their_directories(self, guilds: Guilds) -> None:
        user("ann", "red", "blue")
        user("bob", "red")
        user("eve")
        assert "3 stored" in indexed()
        assert (labels("red"), labels("blue"), labels()) == (["ann", "bob"], ["ann"], [])

    def test_only_in_those_asked_for(self, guilds: Guilds) -> None:
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

    def test_users_whose_key_is_a_text(self, settings: Settings) -> None:
        settings.AUTH_USER_MODEL = "accounts.Named"
        for slug in ("ann", "Bob", "ü", "%", "="):
            Named.objects.create(slug=slug)
        Named.objects.create(slug="cleo", full_name="Cleo C.")
        indexed("--batch", "1")
        assert sorted(labels()) == sorted(["ann", "Bob", "ü", "%", "=", "Cleo C."])

    def test_nobody(self) -> None:
        assert indexed().endswith("Done: 0 stored, 0 removed, 0 refused.\n")


class TestWhoIsNoMore:
    def test_the_inactive_are_left_out_and_removed_whoever_put_them_there(self) -> None:
        ann, bob = user("ann"), user("bob", is_active=False)
        user("eve", is_active=False)
        Directory("everyone").add(str(bob.pk), "bob")
        assert "1 stored, 1 removed" in indexed()
        assert labels() == ["ann"]
        User.objects.filter(pk=ann.pk).update(is_active=False)
        assert "0 stored, 1 removed" in indexed()
        assert labels() == []

    def test_the_deleted_are_removed_page_by_page(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(indexing, "PAGE", 2)
        people = [user(f"user{number}") for number in range(7)]
        indexed()
        for one in people[1:6]:
            one.delete()
        assert "2 stored, 5 removed" in indexed()
        assert labels() == ["user0", "user6"]

    def test_who_changed_directories(self, guilds: Guilds) -> None:
        ann = user("ann", "red", "blue")
        indexed()
        ann.groups.set([Group.objects.get(name="blue"), Group.objects.create(name="green")])
        assert "2 stored, 1 removed" in indexed()
        assert (labels("red"), labels("blue"), labels("green")) == ([], ["ann"], ["ann"])

    def test_a_label_that_changed_is_replaced(self) -> None:
        ann = user("ann")
        indexed()
        User.objects.filter(pk=ann.pk).update(first_name="Ann", last_name="Lee")
        indexed()
        assert labels() == ["Ann Lee"]
        assert Directory("everyone").suggest("ann") == Directory("everyone").suggest("lee")

    def test_another_directory_than_those_asked_for_is_left_alone(self, guilds: Guilds) -> None:
        ann = user("ann", "red", "blue")
        indexed()
        ann.delete()
        indexed("--directory", "red")
        assert (labels("red"), labels("blue")) == ([], ["ann"])
        indexed()
        assert labels("blue") == []

    def test_whom_the_sites_own_code_put_there_stays(self) -> None:
        user("ann")
        Directory("everyone").add("backup-bot", "Backups")
        Directory("machines").add("printer", "Printer")
        for _ in range(2):
            assert "0 removed" in indexed()
        assert (labels(), labels("machines")) == (["ann", "Backups"], ["Printer"])

    def test_unless_it_is_strict(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Directories that no user is in are still left alone."""
        for number in range(600):
            Directory("everyone").add(f"deleted-{number}", f"Deleted {number}")
        user("ann")
        Directory("machines").add("printer", "Printer")
        assert "1 stored, 600 removed" in indexed("--strict")
        assert (labels(), labels("machines")) == (["ann"], ["Printer"])

    def test_who_is_forgotten_leaves_no_mark(self) -> None:
        ann = user("ann")
        indexed()
        forget(str(ann.pk))
        assert [key for key in all_keys() if "everyone" in key] == []


class TestQueries:
    def test_their_number_is_that_of_pages(self, django_assert_num_queries: DjangoAssertNumQueries) -> None:
        for number in range(25):
            user(f"user{number}", is_active=number % 2 == 0)
        with django_assert_num_queries(1 + 4 + 3):  # the total, pages with an empty one, labels
            indexed("--batch", "10")

    def test_also_where_directories_need_some(
        self, guilds: Guilds, django_assert_num_queries: DjangoAssertNumQueries
    ) -> None:
        for number in range(25):
            user(f"user{number}", "red")
        with django_assert_num_queries(1 + 4 + 3 + 3):
            indexed("--batch", "10")


class TestGoingOn:
    def stop_at(self, guilds: Guilds, pages: int, number: signal.Signals = signal.SIGTERM) -> None:
        """A signal comes while that page is done."""
        calls = iter(range(1, 1000))
        guilds.before = lambda: next(calls) == pages and os.kill(os.getpid(), number)

    def crash_at(self, guilds: Guilds, pages: int) -> None:
        calls = iter(range(1, 1000))

        def crash() -> None:
            if next(calls) == pages:
                raise RuntimeError("a crash")

        guilds.before = crash

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_the_first_signal_ends_it_after_a_page_and_the_next_run_goes_on(
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
        assert out.startswith("Indexing 7 users, going on after 4. ")
        assert "Done: 3 stored" in out
        assert len(labels("red")) == 7

    def test_so_does_one_that_crashed(self, guilds: Guilds) -> None:
        people = [user(f"user{at}", "red") for at in range(5)]
        self.crash_at(guilds, 2)
        with pytest.raises(RuntimeError, match="a crash"):
            indexed("--batch", "2")
        guilds.before, guilds.seen = lambda: None, []
        indexed("--batch", "2")
        assert guilds.seen == [str(one.pk) for one in people[2:]]
        assert len(labels("red")) == 5

    def test_what_the_parts_of_a_run_have_found_is_not_removed_and_the_rest_is(self, guilds: Guilds) -> None:
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
    def test_a_signal_while_it_removes(
        self, strict: bool, guilds: Guilds, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(indexing, "PAGE", 2)
        people = [user(f"user{at}", "red") for at in range(6)]
        indexed()
        for one in people[:5]:
            one.delete()
        for at in range(1000):  # more than one page of a scan
            Directory("red").add(f"stranger-{at}", "Stranger")
        method = "strangers" if strict else "left_over"
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
    def test_or_it_begins_anew(self, why: str, guilds: Guilds, monkeypatch: pytest.MonkeyPatch) -> None:
        people = [user(f"user{at}", "red") for at in range(4)]
        self.stop_at(guilds, 1)
        with pytest.raises(CommandError):
            indexed("--batch", "2")
        guilds.seen.clear()
        if why == "too old":
            monkeypatch.setattr(indexing, "STALE", -1)
        words = {"fresh": ["--fresh"], "another directory": ["--directory", "red"]}
        assert "going on" not in indexed(*words.get(why, []))
        assert guilds.seen == [str(one.pk) for one in people]

    def test_after_the_end_the_next_run_begins_anew_with_a_larger_number(self) -> None:
        user("ann")
        numbers = []
        for _ in range(3):
            assert "going on" not in indexed()
            numbers.append(int(server().hget(keys.indexing(conf.prefix()), "run")))
        assert numbers == sorted(set(numbers))
        server().hset(keys.indexing(conf.prefix()), "run", 10**14)  # the clock was set back
        User.objects.all().delete()
        indexed()
        assert int(server().hget(keys.indexing(conf.prefix()), "run")) == 10**14 + 1
        assert labels() == []

    def test_one_whose_place_was_taken_says_so(self, guilds: Guilds) -> None:
        for at in range(4):
            user(f"user{at}", "red")
        guilds.before = lambda: Progress().begin(fresh=True)
        with pytest.raises(CommandError, match="Another index_contacts has ended this run"):
            indexed("--batch", "2")

    def test_one_that_another_has_ended_says_so_and_ends_no_other(self) -> None:
        progress = Progress()
        run = progress.begin()
        progress.end(run)
        with pytest.raises(MessagingError, match="one is enough"):
            progress.save(run)
        following = progress.begin()
        progress.end(run)
        progress.save(following)

    def test_a_late_mark_of_an_earlier_run_takes_nobody_from_the_run_that_took_its_place(self) -> None:
        progress = Progress()
        late = progress.begin()
        run = progress.begin(fresh=True)
        progress.mark(run, "red", ["ann"])
        progress.mark(late, "red", ["ann"])
        assert progress.left_over(run, "red") == []

    def test_another_user_model_meanwhile(self, settings: Settings) -> None:
        user("ann")
        run = Progress().begin()
        Progress().save(Run(run.number, "17", 1))
        settings.AUTH_USER_MODEL = "accounts.Person"
        with pytest.raises(CommandError, match="has other keys than '17' now: begin anew"):
            indexed()
        indexed("--fresh")


class TestWhatCannotBeStored:
    def test_a_label_that_is_too_long_stops_nobody_else(self, caplog: pytest.LogCaptureFixture) -> None:
        user("ann")
        long = user("x" * 150, first_name="Secret" * 25, last_name="Secret" * 25)
        user("bob")
        with pytest.raises(CommandError, match=r"^1 could not be stored: see the log\.$") as error:
            indexed()
        assert error.value.returncode == 1
        assert labels() == ["ann", "bob"]
        assert f"Member '{long.pk}' can't be in directory 'everyone': label" in caplog.text
        assert "Secret" not in caplog.text

    def test_who_could_not_be_stored_leaves_no_mark(self, guilds: Guilds, settings: Settings) -> None:
        change(settings, LABEL_MAX_BYTES=10)
        user("x" * 20, "red")
        with pytest.raises(CommandError, match="1 could not be stored"):
            indexed()
        assert [key for key in all_keys() if "red" in key] == []

    def test_whose_new_label_could_not_be_stored_keeps_the_old_one(self, settings: Settings) -> None:
        change(settings, LABEL_MAX_BYTES=10)
        ann = user("ann")
        indexed()
        User.objects.filter(pk=ann.pk).update(first_name="x" * 20)
        with pytest.raises(CommandError, match="1 could not be stored"):
            indexed()
        assert labels() == ["ann"]
        ann.delete()
        assert "1 removed" in indexed()

    def test_a_crash_before_the_first_is_stored_leaves_nobody_who_can_not_be_forgotten(
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
    def test_a_full_directory_is_said_once(
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

    def test_ids_that_are_none(self, guilds: Guilds, monkeypatch: pytest.MonkeyPatch) -> None:
        user("ann", "red")
        monkeypatch.setattr(Guilds, "member_id", lambda self, user: "")
        with pytest.raises(CommandError, match="member is empty"):
            indexed()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class TestWhatItSays:
    def test_progress_on_a_terminal(self) -> None:
        for at in range(5):
            user(f"user{at}")
        out = Terminal()
        call_command("index_contacts", "--batch", "2", stdout=out)
        lines = out.getvalue().split("\n")
        assert lines[1] == "\r2 of 5 users\r4 of 5 users\r5 of 5 users"
        assert lines[2].startswith("Done")

    def test_lines_elsewhere_now_and_then(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for at in range(5):
            user(f"user{at}")
        assert " of 5 users\n" not in indexed("--batch", "2")
        monkeypatch.setattr(index_contacts, "REPORT", 0.0)
        assert "2 of 5 users\n4 of 5 users\n5 of 5 users\nDone" in indexed("--batch", "2")

    def test_nothing(self) -> None:
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
            (["--batch", "0"], "--batch is 1 to 1000"),
            (["--batch", "1001"], "--batch is 1 to 1000"),
            (["--batch", "many"], "invalid int value: 'many'"),
            (["--directory", ""], "guild is empty"),
        ],
    )
    def test_bad_options(self, words: list[str], text: str) -> None:
        with pytest.raises(CommandError) as error:
            indexed(*words)
        assert text in str(error.value)
        assert "\n" not in str(error.value)

    def test_redis_down_is_one_line(self, settings: Settings) -> None:
        entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "unix:///nowhere?db=0"}
        settings.CACHES = {**settings.CACHES, "nowhere": entry}
        change(settings, ALIAS="nowhere", COMMAND_DEADLINE=0.1)
        with pytest.raises(CommandError, match="Redis can't be reached") as error:
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


async def test_awaiting(own_prefix: str) -> None:
    progress = Progress()
    run = await progress.abegin(["red"])
    await progress.amark(run, "red", ["ann"])
    await Directory("red").aadd_many([("ann", "Ann"), ("bob", "Bob")])
    await progress.asave(Run(run.number, "ann", 1))
    assert await progress.abegin(["red"]) == Run(run.number, "ann", 1)
    assert await progress.aguilds() == ["red"]
    assert await progress.astrangers(run, "red") == ("0", ["bob"])
    assert await progress.aleft_over(Run(run.number + 1, None, 0), "red") == ["ann"]
    await Directory("red").aremove_many(["ann", "bob"])
    await progress.aend(run)
    assert (await progress.abegin(["red"])).after is None
