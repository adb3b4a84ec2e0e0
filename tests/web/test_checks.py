"""The checks of the pages: signing in, labels, ASGI, empty directories."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf.urls.i18n import i18n_patterns
from django.contrib.admin import AdminSite
from django.contrib.auth.forms import AuthenticationForm
from django.core.checks import CheckMessage
from django.test import override_settings
from django.urls import include, path, reverse_lazy
from pytest_django import Settings

from django_redis_messaging import Directory
from django_redis_messaging.web.checks import check_deployed_pages, check_pages
from django_redis_messaging.web.identity import Identity
from tests.directories.test_sync_command import user
from tests.support.server import change

pytestmark = [pytest.mark.one_server, pytest.mark.versions]


class OpenSite(AdminSite):
    """An admin site whose form accepts all users."""

    login_form = AuthenticationForm


#: the URLs of a site whose sign-in page has the language in its address
urlpatterns = [
    path("messages/", include("django_redis_messaging.urls")),
    path("office/", OpenSite("office").urls),
    *i18n_patterns(path("accounts/", include("django.contrib.auth.urls"))),
]


class OwnLabels(Identity):
    """Labels that are no e-mail addresses."""

    def label(self, user: Any) -> str:
        return f"User {user.pk}"


class Teams(Identity):
    """Directories of the site's own."""

    def directories(self, user: Any) -> list[str]:
        return [f"team-{user.username}"]


def only(messages: list[CheckMessage], id: str) -> list[CheckMessage]:
    return [message for message in messages if message.id == f"messaging.{id}"]


class TestLoginURL:
    @pytest.mark.parametrize(
        ("login_url", "id"),
        [
            ("/sign-in/", None),
            ("https://sso.example.com/login", None),
            ("/accounts/login/", "W017"),
            ("login", "W017"),
            ("admin:sign_in", "W017"),
            (reverse_lazy("nowhere"), "W017"),
            ("/admin/login/", "W028"),
            ("admin:login", "W028"),
        ],
    )
    def test_pages_where_not_everybody_can_sign_in_are_reported(self, login_url: Any, id: str | None) -> None:
        with override_settings(LOGIN_URL=login_url):
            found = check_pages()
        assert [message.id for message in found] == [f"messaging.{id}"] * (id is not None)
        for message in found:
            shown = repr(login_url) if isinstance(login_url, str) else "'nowhere' not found"
            assert shown in message.msg
            assert "admin" not in str(message.hint) and "django.contrib.auth.urls" in str(message.hint)

    @pytest.mark.parametrize("login_url", ["/accounts/login", "/office/login/"])
    def test_addresses_that_middleware_redirects_and_admin_sites_for_all_are_fine(
        self, login_url: str
    ) -> None:
        with override_settings(ROOT_URLCONF=__name__, LOGIN_URL=login_url):
            assert check_pages() == []

    def test_sites_without_the_pages_are_not_checked(self, settings: Settings) -> None:
        settings.ROOT_URLCONF = "django.contrib.auth.urls"
        with override_settings(LOGIN_URL="/accounts/login/"):
            assert check_pages() == check_deployed_pages() == []


class TestLabels:
    def test_addresses_as_labels_are_reported(self, settings: Settings) -> None:
        assert check_pages() == []
        settings.AUTH_USER_MODEL = "accounts.Named"
        assert check_pages() == []
        settings.AUTH_USER_MODEL = "accounts.Person"
        [message] = check_pages()
        assert message.id == "messaging.W029"
        assert "accounts.Person is an e-mail address (email): all users are shown by it" in message.msg
        change(settings, IDENTITY=f"{__name__}.OwnLabels")
        assert check_pages() == []

    def test_full_names_may_be_empty(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from django.contrib.auth.models import User

        monkeypatch.setattr(User, "USERNAME_FIELD", "email")
        [message] = check_pages()
        assert "users without a full name are shown by it" in message.msg


class TestAsgi:
    @pytest.fixture
    def project(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
        """The package of a project with wsgi.py only."""
        monkeypatch.syspath_prepend(tmp_path)
        (package := tmp_path / "onlywsgi").mkdir()
        for name in ("__init__", "wsgi"):
            (package / f"{name}.py").touch()
        yield package
        sys.modules.pop("onlywsgi", None)

    def test_site_without_an_asgi_application_polls(self, project: Path, settings: Settings) -> None:
        assert only(check_deployed_pages(), "W030") == []  # without WSGI_APPLICATION, nothing is known
        settings.WSGI_APPLICATION = "onlywsgi.wsgi.application"
        [message] = only(check_deployed_pages(), "W030")
        assert "no module onlywsgi.asgi" in message.msg and "onlywsgi/asgi.py" in str(message.hint)
        change(settings, LIVE=False)
        assert only(check_deployed_pages(), "W030") == []
        change(settings, LIVE=True)
        settings.ASGI_APPLICATION = "onlywsgi.routing.application"
        assert only(check_deployed_pages(), "W030") == []

    def test_module_of_the_project_is_an_application(self, project: Path, settings: Settings) -> None:
        (project / "asgi.py").touch()
        settings.WSGI_APPLICATION = "onlywsgi.wsgi.application"
        assert only(check_deployed_pages(), "W030") == []


class TestEmptyDirectories:
    def test_they_are_reported_until_one_has_an_entry(self, settings: Settings) -> None:
        [message] = only(check_deployed_pages(), "W031")
        assert "(everyone)" in message.msg
        assert "manage.py sync_directory" in str(message.hint) and "FOLLOW_USERS" in str(message.hint)
        Directory("everyone").add("1", "Ann")
        assert only(check_deployed_pages(), "W031") == []

    @pytest.mark.django_db
    def test_directories_of_an_identity(self, settings: Settings) -> None:
        change(settings, IDENTITY=f"{__name__}.Teams")
        assert only(check_deployed_pages(), "W031") == []  # there are no users yet
        user("ann"), user("bob")
        [message] = only(check_deployed_pages(), "W031")
        assert "(team-ann, team-bob)" in message.msg
        Directory("team-bob").add("1", "Ann")
        assert only(check_deployed_pages(), "W031") == []
