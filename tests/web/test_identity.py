"""The identity, with different user models."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.test import RequestFactory
from pytest_django import DjangoAssertNumQueries, Settings

from django_redis_messaging import Chat, ConfigurationError
from django_redis_messaging.services.directories import Directory
from django_redis_messaging.web import identity, views
from django_redis_messaging.web.identity import Identity

from .accounts.models import Named, Person

pytestmark = pytest.mark.versions


class Shouting(Identity):
    """A custom identity."""

    def label(self, user: Any) -> str:
        return super().label(user).upper()


class TestDefault:
    def test_the_member_id_is_the_primary_key(self, person: Callable[..., User]) -> None:
        ann = person("ann")
        assert Identity().member_id(ann) == str(ann.pk)

    def test_the_label_is_the_full_name_or_the_user_name(self, person: Callable[..., User]) -> None:
        ann, bob = person("ann", first_name="Ann", last_name="Lee"), person("bob")
        assert Identity().labels([str(ann.pk), str(bob.pk)]) == {str(ann.pk): "Ann Lee", str(bob.pk): "bob"}

    def test_labels_take_one_query(
        self, person: Callable[..., User], django_assert_num_queries: DjangoAssertNumQueries
    ) -> None:
        ids = [str(person(f"user{number}").pk) for number in range(30)]
        with django_assert_num_queries(1):
            assert len(Identity().labels(ids * 2)) == 30

    def test_no_labels_take_no_query(self, django_assert_num_queries: DjangoAssertNumQueries) -> None:
        with django_assert_num_queries(0):
            assert Identity().labels([]) == {}

    def test_deleted_users_have_a_label(self, person: Callable[..., User]) -> None:
        ann = person("ann")
        gone = str(ann.pk)
        ann.delete()
        assert Identity().labels([gone]) == {gone: f"Former user {gone}"}

    def test_an_id_that_is_not_a_key_is_its_own_label(self) -> None:
        bot = "backup-bot"
        huge = "9" * 30
        assert Identity().labels([bot]) == {bot: bot}
        assert set(Identity().labels([huge])) == {huge}

    def test_only_active_users_may_use_the_pages(self, person: Callable[..., User]) -> None:
        assert Identity().may_use(person("ann"))
        assert not Identity().may_use(person("bob", is_active=False))
        assert not Identity().may_use(AnonymousUser())


class TestOtherUserModels:
    def test_uuid_and_email_and_no_full_name(self, settings: Settings) -> None:
        settings.AUTH_USER_MODEL = "accounts.Person"
        ann = Person.objects.create(email="ann@example.org")
        gone, bot = str(uuid.uuid4()), "bot"
        labels = identity.current().labels([str(ann.pk), gone, bot])
        assert labels == {str(ann.pk): "ann@example.org", gone: f"Former user {gone[:8]}", bot: bot}

    def test_inactive_users_keep_their_label_but_may_not_use_the_pages(self, settings: Settings) -> None:
        settings.AUTH_USER_MODEL = "accounts.Person"
        ann = Person.objects.create(email="ann@example.org", is_active=False)
        assert identity.current().labels([str(ann.pk)]) == {str(ann.pk): "ann@example.org"}
        assert not identity.current().may_use(ann)

    def test_an_empty_full_name_is_ignored(self, settings: Settings) -> None:
        settings.AUTH_USER_MODEL = "accounts.Named"
        Named.objects.create(slug="ann", full_name="  ")
        Named.objects.create(slug="bob", full_name="Bob B.")
        assert identity.current().labels(["ann", "bob"]) == {"ann": "ann", "bob": "Bob B."}

    @pytest.mark.parametrize("name", ["chats", "new", "contacts", "room"])
    def test_pages(self, settings: Settings, rf: RequestFactory, name: str) -> None:
        settings.AUTH_USER_MODEL = "accounts.Person"
        ann, bob = (Person.objects.create(email=f"{name}@example.org") for name in ("ann", "bob"))
        Directory("everyone").add(str(bob.pk), bob.email)
        chat = Chat.create(str(ann.pk), [str(bob.pk)], "Hello")
        request = rf.get("/")
        request.user = ann  # type: ignore[assignment]
        view = {"chats": views.ChatsView, "new": views.NewChatView, "contacts": views.ContactsView}
        kwargs = {"chat_id": chat.id} if name == "room" else {}
        answer: Any = view.get(name, views.RoomView).as_view()(request, **kwargs)
        assert answer.render().status_code == 200
        if name != "contacts":
            assert "bob@example.org" in answer.content.decode()


class TestSetting:
    def test_the_class_in_the_settings_is_used(self, settings: Settings, person: Callable[..., User]) -> None:
        ann = str(person("ann").pk)
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "IDENTITY": f"{__name__}.Shouting"}
        assert identity.current().labels([ann]) == {ann: "ANN"}

    def test_it_is_created_once(self) -> None:
        assert identity.current() is identity.current()

    @pytest.mark.parametrize("path", ["nowhere.Identity", "uuid.uuid4", "builtins.memoryview"])
    def test_an_invalid_path_raises(self, settings: Settings, path: str) -> None:
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "IDENTITY": path}
        with pytest.raises(ConfigurationError, match="IDENTITY"):
            identity.current()
