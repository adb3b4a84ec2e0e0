"""Who may see and change what: each URL of the console for each role and method, where it is included, and
the hook CONSOLE."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from django_redis_messaging import ConfigurationError, Lock
from django_redis_messaging.console import SECTIONS, access
from django_redis_messaging.console.access import Console
from django_redis_messaging.console.audit import LABELS
from django_redis_messaging.console.base import ChangePage, ThingPage
from django_redis_messaging.console.urls import ROUTES, Route
from django_redis_messaging.services.audit import AuditTrail
from django_redis_messaging.services.common.things import Thing

from ..support.server import change, snapshot
from ..web.conftest import client_of
from . import sites

ROLES = ("anonymous", "user", "staff", "superuser")
METHODS = ("get", "post", "put", "patch", "delete")
#: pages that nobody may leave out: a new one needs a row
PAGES = {
    "overview", "search", "history", "chats", "chat", "channels", "mailbox", "broadcast", "files",
    "directory", "lock", "rwlock", "semaphore", "latch", "set_limit", "rate", "locks", "release", "limits",
    "reset", "audit",
    "queues", "queue", "task", "job", "workers", "worker", "pause", "resume", "purge", "retry", "redrive",
    "run_now", "reschedule", "set_priority", "cancel", "discard", "schedule", "periodic", "run_periodic",
    "pause_periodic", "resume_periodic", "remove_periodic", "timers", "timer", "fire", "cancel_timer",
}  # fmt: skip


def all_routes() -> Iterator[Route]:
    for section in SECTIONS:
        yield from ROUTES[section.name]


def expected(route: Route, method: str, role: str, *, in_admin: bool) -> set[int]:
    """The statuses that are right."""
    if role == "anonymous" or (role == "user" and in_admin):
        return {302}
    if role != "superuser":
        return {403}
    if method == "get" and issubclass(route.view, ChangePage):
        return {405}
    if method not in ("get", "post") or (method == "post" and not issubclass(route.view, ChangePage)):
        return {405}
    # nothing is named
    return {400} if issubclass(route.view, ChangePage | ThingPage) else {200}


class Operators(Console):
    """A site whose operators are no superusers, may not release locks of others, and may read chats."""

    def may_view(self, user: Any) -> bool:
        return user.username in ("ann", "bob")

    def may_act(self, user: Any, action: str, thing: Thing) -> bool:
        return user.username == "ann" or (action, thing.name) == ("release", "open")

    def may_read(self, user: Any, thing: Thing) -> bool:
        return True


@pytest.fixture
def clients() -> dict[str, Client]:
    """One for each role."""
    return {
        "anonymous": Client(),
        "user": client_of(User.objects.create(username="user")),
        "staff": client_of(User.objects.create(username="staff", is_staff=True)),
        "superuser": client_of(User.objects.create(username="root", is_staff=True, is_superuser=True)),
    }


def test_each_page_has_a_row() -> None:
    assert {route.name for route in all_routes()} == PAGES
    assert {section.name for section in SECTIONS} == set(ROUTES)


@pytest.mark.parametrize("in_admin", [True, False], ids=["admin", "alone"])
def test_roles(clients: dict[str, Client], settings: Settings, in_admin: bool) -> None:
    if not in_admin:
        settings.ROOT_URLCONF = sites.NoAdmin
    namespace = "admin" if in_admin else "messaging_console"
    for route in all_routes():
        url = reverse(f"{namespace}:messaging_{route.name}")
        for role in ROLES:
            for method in METHODS:
                answer = getattr(clients[role], method)(url)
                which = (route.name, role, method)
                assert answer.status_code in expected(route, method, role, in_admin=in_admin), which
                if answer.status_code == 302:
                    assert "next=" + url in answer["Location"], which
                else:
                    assert "no-store" in answer["Cache-Control"], which


@pytest.mark.parametrize("in_admin", [True, False], ids=["admin", "alone"])
def test_only_superusers_change_a_thing_that_is_named(
    clients: dict[str, Client], settings: Settings, in_admin: bool
) -> None:
    """Each change, of each kind of things that it is about, whether it asks or is confirmed."""
    if not in_admin:
        settings.ROOT_URLCONF = sites.NoAdmin
    namespace = "admin" if in_admin else "messaging_console"
    Lock("a").acquire(blocking=False, token="t")
    before = snapshot()
    for route in all_routes():
        for kind in route.view.kinds if issubclass(route.view, ChangePage) else ():
            url, thing = reverse(f"{namespace}:messaging_{route.name}"), str(Thing(kind, "a"))
            for role in ROLES[:-1]:
                for data in ({}, {"confirmed": "1"}):
                    answer = clients[role].post(url, {"thing": thing, "holder": "t", **data})
                    assert answer.status_code in expected(route, "post", role, in_admin=in_admin), url
    assert snapshot() == before


def test_changes_need_a_token(clients: dict[str, Client], operator: User, settings: Settings) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(operator)
    for urlconf, namespace in ((settings.ROOT_URLCONF, "admin"), (sites.NoAdmin, "messaging_console")):
        settings.ROOT_URLCONF = urlconf
        for route in all_routes():
            if issubclass(route.view, ChangePage):
                url = reverse(f"{namespace}:messaging_{route.name}")
                assert strict.post(url, {"thing": "lock:a", "confirmed": "1"}).status_code == 403


class TestPlaces:
    def test_the_admin_has_an_entry_for_each_section(self, boss: Client, clients: dict[str, Client]) -> None:
        index, staff = boss.get("/admin/"), clients["staff"].get("/admin/")
        for section in SECTIONS:
            url = reverse(f"admin:django_redis_messaging_{section.name}_changelist")
            assert url == f"/admin/django_redis_messaging/{section.name}/"
            assert f'href="{url}"' in index.content.decode()
            assert f'href="{url}"' not in staff.content.decode()
            text = boss.get(url).content.decode()
            assert 'id="nav-sidebar"' in text and 'aria-current="page"' in text

    def test_two_admins_of_a_site_keep_their_links_apart(self, boss: Client, settings: Settings) -> None:
        settings.ROOT_URLCONF = sites.TwoAdmins
        for name in ("first", "second"):
            text = boss.get(f"/{name}/django_redis_messaging/locks/").content.decode()
            other = {"first": "second", "second": "first"}[name]
            assert "Back office" in text and f'href="/{name}/' in text and f"/{other}/" not in text

    def test_without_an_admin(self, settings: Settings) -> None:
        """Not even the pages of the app are needed."""
        settings.ROOT_URLCONF = sites.NoAdmin
        client = client_of(User.objects.create(username="root", is_superuser=True))
        text = client.get("/console/").content.decode()
        assert "/admin/" not in text and 'href="/console/locks/"' in text
        assert client.get("/console/", HTTP_MESSAGING_FRAGMENT="1").content.decode().count("<html") == 0


class TestHook:
    def test_a_site_decides_who_sees_and_acts(self, settings: Settings) -> None:
        change(settings, CONSOLE=f"{__name__}.Operators")
        settings.ROOT_URLCONF = sites.NoAdmin
        ann, bob, root = (
            client_of(User.objects.create(username=name, is_superuser=name == "root"))
            for name in ("ann", "bob", "root")
        )
        assert root.get("/console/locks/").status_code == 403
        for name in ("closed", "open"):
            Lock(name).acquire(blocking=False, token="a holder")
        assert ann.get("/console/locks/").content.decode().count("Release<") == 2
        assert bob.get("/console/locks/").content.decode().count("Release<") == 1
        url, data = "/console/locks/release/", {"holder": "a holder", "confirmed": "1"}
        assert bob.post(url, {**data, "thing": "lock:closed"}).status_code == 403
        assert Lock("closed").locked()
        assert bob.post(url, {**data, "thing": "lock:open"}).status_code == 302
        assert not Lock("open").locked()
        assert [entry.by for entry in AuditTrail().entries()] == ["bob"]

    def test_defaults(self) -> None:
        console = Console()
        root = User(username="root", is_superuser=True)
        assert console.may_view(root) and not console.may_view(User(is_superuser=True, is_active=False))
        assert not console.may_view(User(is_staff=True))
        assert console.may_read(root, Thing("task", "1", "default"))
        assert not console.may_read(root, Thing("chat", "1")) and not console.may_read(
            root, Thing("mailbox", "1")
        )
        assert console.mask("DB_PASSWORD", "x") == console.mask("authToken", 5) == "••••••"

    @pytest.mark.parametrize("path", ["nowhere.Console", "uuid.uuid4", "builtins.memoryview"])
    def test_an_invalid_path_raises(self, settings: Settings, path: str) -> None:
        change(settings, CONSOLE=path)
        with pytest.raises(ConfigurationError, match="CONSOLE"):
            access.current()


class TestChanges:
    def test_a_change_is_asked_for_made_and_recorded(self, boss: Client) -> None:
        Lock("nightly").acquire(blocking=False, token="a holder")
        url, back = reverse("admin:messaging_release"), reverse("admin:messaging_audit")
        data = {"thing": "lock:nightly", "holder": "a%20holder", "next": back}
        asked = boss.post(url, data).content.decode()
        assert "Release this lock?" in asked and 'name="holder" value="a%20holder"' in asked
        assert Lock("nightly").locked() and not AuditTrail().entries()
        done = boss.post(url, {**data, "confirmed": "1"}, follow=True)
        assert done.redirect_chain == [(back, 302)] and "It was released." in done.content.decode()
        [entry] = AuditTrail().entries()
        assert (entry.by, entry.action, entry.thing, entry.number) == ("boss", "release", "lock:nightly", 1)
        assert "Held by a holder." in done.content.decode() and "<bdi>Release</bdi>" in done.content.decode()
        late = boss.post(url, {**data, "confirmed": "1"})
        assert late.status_code == 404 and len(AuditTrail().entries()) == 1

    @pytest.mark.one_server
    def test_the_audit_trail_has_words_for_each(self) -> None:
        views = [route.view for route in all_routes() if issubclass(route.view, ChangePage)]
        assert {view.action: view.label for view in views} == LABELS

    def test_bad_input(self, boss: Client) -> None:
        url = reverse("admin:messaging_release")
        for thing in (
            "",
            "lock:",
            "nothing:a",
            "queue:a",
            "lock:a/b/c",
            "lock:a}b%00",
            "x" * 300,
            "semaphore:x/y",
        ):
            assert boss.post(url, {"thing": thing, "confirmed": "1"}).status_code in (400, 404), thing
        assert boss.post(url, {"thing": ["lock:a"] * 300}).status_code == 400
        Lock("a").acquire(blocking=False, token="t")
        data = {"thing": "lock:a", "holder": "t", "next": "https://evil.example/", "confirmed": "1"}
        assert boss.post(url, data)["Location"] == reverse("admin:messaging_locks")

    def test_changes_have_a_rate(self, boss: Client, settings: Settings) -> None:
        change(settings, CHANGE_RATE=1)
        url = reverse("admin:messaging_release")
        for status in (302, 429):
            Lock("a").acquire(blocking=False, token="t")
            answer = boss.post(url, {"thing": "lock:a", "holder": "t", "confirmed": "1"})
            assert answer.status_code == status
        assert "Retry-After" in answer
