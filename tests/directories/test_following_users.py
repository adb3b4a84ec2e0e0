"""FOLLOW_USERS: directories that are equal to the user model, and what the pages make of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.db.models.signals import post_save
from pytest_django import DjangoCaptureOnCommitCallbacks, Settings

from django_redis_messaging import Chat, Directory, Inbox, Mailbox, Unavailable, conf
from django_redis_messaging.services.directories.directory import Directory as AnyDirectory
from django_redis_messaging.services.directories.directory import SyncProgress
from django_redis_messaging.web.directories import update_user
from django_redis_messaging.web.identity import Identity, current
from django_redis_messaging.web.people import suggest
from tests.support.server import change
from tests.web.conftest import client_of

from . import test_sync_command
from .test_sync_command import labels, user

pytestmark = [pytest.mark.one_server, pytest.mark.django_db]


class OnlyActive(Identity):
    """Inactive users are not even read."""

    def users(self) -> Any:
        return User.objects.filter(is_active=True)


def sync(**options: Any) -> None:
    call_command("sync_directory", verbosity=0, **options)


@pytest.fixture
def commit(
    settings: Settings, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> Callable[[Callable[[], Any]], Any]:
    """Calls a function and then the receivers, as at the end of a transaction; returns its result."""
    change(settings, FOLLOW_USERS=True)

    def call(function: Callable[[], Any]) -> Any:
        with django_capture_on_commit_callbacks(execute=True):
            return function()

    return call


Commit = Callable[[Callable[[], Any]], Any]


class TestFollowing:
    def test_saving_a_user_updates_the_directories(self, settings: Settings, commit: Commit) -> None:
        change(settings, IDENTITY=f"{test_sync_command.__name__}.Guilds")
        ann = user("ann", "red")
        commit(ann.save)
        assert labels("red") == ["ann"]
        ann.groups.set([Group.objects.create(name="blue")])
        ann.first_name = "Anna"
        commit(ann.save)
        assert (labels("red"), labels("blue")) == ([], ["Anna"])
        ann.is_active = False
        commit(ann.save)
        assert labels("blue") == []

    def test_deleting_a_user_forgets_them(self, commit: Commit) -> None:
        ann = commit(lambda: user("ann"))
        member = str(ann.pk)
        chat = Chat.create("bob", [member])
        Mailbox(member).send("hello")
        commit(ann.delete)
        assert [member.user for member in chat.members()] == ["bob"]
        assert (Inbox(member).chats(), Mailbox(member).unread(), labels()) == ([], 0, [])

    @pytest.mark.parametrize("followed", [True, False])
    def test_nothing_happens_before_the_commit_or_if_it_is_off(
        self,
        followed: bool,
        settings: Settings,
        django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
    ) -> None:
        assert not conf.Settings().FOLLOW_USERS
        change(settings, FOLLOW_USERS=followed)
        with django_capture_on_commit_callbacks() as waiting:
            made = user("ann")
        assert len(waiting) == followed and labels() == []
        with django_capture_on_commit_callbacks() as waiting:
            made.delete()
        assert len(waiting) == followed

    def test_a_failure_does_not_reach_the_caller(
        self, caplog: pytest.LogCaptureFixture, commit: Commit
    ) -> None:
        gone = Unavailable("The server is gone.")
        with mock.patch.object(AnyDirectory, "add_many", side_effect=gone):
            ann = commit(lambda: user("ann"))
        assert f"Following a change of user {ann.pk} failed; sync_directory repairs it" in caplog.text
        with mock.patch.object(Identity, "directories", side_effect=AttributeError("profile")) as failing:
            commit(lambda: user("bob"))
        assert failing.called


def before_first(service: type, method: str, action: Callable[[], Any]) -> Any:
    """Call `action` when `method` is called for the first time, before it runs."""
    called, actions = getattr(service, method), [action]

    def call(*args: Any, **options: Any) -> Any:
        if actions:
            actions.pop()()
        return called(*args, **options)

    return mock.patch.object(service, method, call)


class TestChangesDuringARun:
    """A change between the reading of the users and the writing of the directory."""

    @pytest.mark.parametrize("keep", [False, True])
    @pytest.mark.parametrize("kind", ["rename", "deactivate", "delete"])
    def test_it_is_not_overwritten(self, commit: Commit, keep: bool, kind: str) -> None:
        ann, _ = user("ann"), user("bob")
        changes = {"rename": {"first_name": "Anna"}, "deactivate": {"is_active": False}, "delete": {}}
        vars(ann).update(changes[kind])
        apply = ann.delete if kind == "delete" else ann.save
        with before_first(AnyDirectory, "add_many", lambda: commit(apply)):
            sync(keep=keep)
        assert labels() == (["Anna", "bob"] if kind == "rename" else ["bob"])

    def test_a_user_who_is_created_stays(self, commit: Commit) -> None:
        user("ann")
        with before_first(SyncProgress, "other_members", lambda: commit(lambda: user("new"))):
            sync()
        assert labels() == ["ann", "new"]

    def test_two_receivers(self, commit: Commit) -> None:
        ann = user("ann")
        ann.first_name = "Anna"
        with before_first(AnyDirectory, "add_many", lambda: commit(ann.save)):
            update_user(ann.pk, str(ann.pk))
        assert labels() == ["Anna"]


class TestWhatReceiversChange:
    def test_a_directory_that_a_user_has_left_without_a_signal_is_repaired(
        self, settings: Settings, commit: Commit
    ) -> None:
        change(settings, IDENTITY=f"{test_sync_command.__name__}.Guilds")
        ann = user("ann", "red")
        commit(ann.save)
        ann.groups.set([Group.objects.create(name="blue")])
        sync()
        assert (labels("red"), labels("blue")) == ([], ["ann"])

    def test_users_whom_the_identity_leaves_out_are_removed(self, settings: Settings, commit: Commit) -> None:
        change(settings, IDENTITY=f"{__name__}.OnlyActive")
        ann = user("ann")
        Directory("board").add(str(ann.pk), "Ann")
        commit(ann.save)
        assert (labels("board"), labels()) == (["Ann"], ["ann"]), "other directories of the site stay"
        ann.is_active = False
        commit(ann.save)
        assert labels() == []

    def test_fixtures_and_sign_ins_are_ignored(self, commit: Commit) -> None:
        ann = user("ann")
        commit(lambda: ann.save(update_fields=["last_login"]))
        commit(lambda: post_save.send(User, instance=ann, raw=True, using="default", update_fields=None))
        assert labels() == []


class TestInactiveUsers:
    def test_they_hide_nobody_who_is_active(self, commit: Commit) -> None:
        names = [f"a{number:02}" for number in range(25)]
        for name in (*names, "azoe", "me"):
            user(name)
        sync()
        User.objects.filter(username__in=names).update(is_active=False)
        found, more = suggest(current(), User.objects.get(username="me"), "a", [])
        assert ([person.label for person in found], more) == (["azoe"], False)

    def test_they_are_neither_suggested_nor_added(self) -> None:
        ann, bob, cat = user("ann"), user("bob"), user("cat")
        sync()
        Directory("everyone").add("backup-bot", "Backup bot")
        User.objects.filter(pk=bob.pk).update(is_active=False)
        cat_id, _ = str(cat.pk), cat.delete()
        client = client_of(ann, json=True)
        results = client.get("/messages/contacts/suggest/", {"q": ""}).json()["results"]
        assert [person["text"] for person in results] == ["Backup bot"]
        for member in (str(bob.pk), cat_id):
            answer = client.post("/messages/new/", {"to": member, "body": "hello"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "not_in_directory")
        assert client.post("/messages/new/", {"to": "backup-bot"}).status_code == 200

    def test_identity_asks_the_database_once(self, django_assert_num_queries: Any) -> None:
        ids = [str(user(f"user{number}", is_active=number % 2 == 0).pk) for number in range(6)]
        with django_assert_num_queries(1):
            assert current().available([*ids, "bot", "999999"]) == {*ids[::2], "bot"}


class TestEmptyDirectory:
    @pytest.mark.parametrize("path", ["contacts/", "new/"])
    def test_staff_are_told_how_to_fill_it(self, path: str) -> None:
        ann, staff = user("ann"), user("staff", is_staff=True)
        superuser = user("root", is_superuser=True)

        def has_hint(one: User) -> bool:
            return b"manage.py sync_directory" in client_of(one).get(f"/messages/{path}").content

        assert (has_hint(staff), has_hint(superuser), has_hint(ann)) == (True, True, False)
        sync()
        assert not has_hint(staff)
