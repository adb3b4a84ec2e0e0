"""The pages in different sites: security policies, URL prefixes, middleware, servers, admin, layout."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import django
import pytest
from django.contrib import admin
from django.contrib.auth.models import AnonymousUser, User
from django.contrib.staticfiles import finders
from django.core.management import call_command
from django.http import HttpRequest
from django.template import Context, Template
from django.test import Client, RequestFactory
from django.test.utils import override_settings
from django.urls import clear_script_prefix, include, path, reverse, set_script_prefix
from django.utils.functional import SimpleLazyObject
from pytest_django import Settings

import django_redis_messaging
from django_redis_messaging.console import SECTIONS
from django_redis_messaging.urls import urlpatterns
from django_redis_messaging.web.views.people import ContactsView

from ..support import content_policies
from .conftest import Members, Room, client_of, code

PACKAGE = Path(str(django_redis_messaging.__file__)).parent
PAGES = ("chats", "new", "contacts", "notifications", "room", "add")


def address(name: str, room: Room) -> str:
    return reverse(f"messaging:{name}", args=[room.chat.id] if name in ("room", "add") else [])


def page(room: Room, name: str, role: str = "owner") -> str:
    answer = room.client(role).get(address(name, room))
    assert answer.status_code == 200
    return answer.content.decode()


class Violations(HTMLParser):
    """The parts of a page that violate a Content-Security-Policy of 'self'."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.found += [f"{tag} {name}" for name in named if name.startswith("on") or name == "style"]
        self.found += ["<style>"] if tag == "style" else []
        self.found += ["inline script"] if tag == "script" and "src" not in named else []
        for name in ("src", "href"):
            value = named.get(name) or ""
            loads = tag in ("script", "link", "img", "iframe")
            if value.startswith(("javascript:", "data:")) or (loads and "//" in value):
                self.found.append(f"{tag} {name}={value}")


def test_the_checker_finds_violations() -> None:
    text = '<p style="x" onclick="y"><script>1</script><style></style><a href="javascript:1"></a>'
    assert len(Violations(text).found) == 5


def test_nothing_is_inline(room: Room) -> None:
    for name in PAGES:
        assert Violations(page(room, name)).found == [], name


@pytest.mark.parametrize("source", sorted((PACKAGE / "static").rglob("*.js")), ids=lambda path: path.name)
def test_modules_have_no_urls_and_read_no_cookies(source: Path) -> None:
    text = source.read_text(encoding="utf-8")
    assert not re.search(r"""^\s*(import|export) .*\bfrom\b""", text, re.MULTILINE)
    assert "document.cookie" not in text
    assert not re.search(r"""["'`]/\w""", text)
    # A policy allows scripts to set single properties of a style, and no whole style.
    style = r"""\.style(?!\.\w+ = |\.setProperty\("--)|\.cssText|"style\""""
    assert not re.search(rf"\b(eval|Function)\(|{style}|insertAdjacentHTML", text)


def test_scripts_and_style_sheets_are_small() -> None:
    """Comments don't count: servers compress what they send, and nobody should save on explanations."""
    of_console = {"charts.css", "console.css", "console.js"}  # see tests/console/test_pages_browser.py
    files = [path for path in (PACKAGE / "static").rglob("*.*") if path.name not in of_console]
    sources = [path.read_text(encoding="utf-8") for path in files]
    comments = re.compile(r"^\s*//[^\n]*\n| // [^\n]*|/\*.*?\*/\n?", re.MULTILINE | re.DOTALL)
    code = [comments.sub("", source) for source in sources]
    assert sum(len(one.encode()) for one in code) <= 124_000


class TestScriptName:
    @pytest.fixture
    def prefixed(self, settings: Settings) -> Iterator[None]:
        settings.FORCE_SCRIPT_NAME = "/inner"
        set_script_prefix("/inner/")
        yield
        clear_script_prefix()

    def test_all_urls_have_the_prefix(self, room: Room, prefixed: None) -> None:
        attributes = r'(?:href|src|action|data-(?:feed|ack|send|suggest|edit|login))="(/[^"]*)"'
        for name in PAGES:
            answer = room.client("owner").get(address(name, room).removeprefix("/inner"))
            found = re.findall(attributes, answer.content.decode())
            assert len(found) > 5
            ours = [value for value in found if not value.startswith("/static/")]
            assert [value for value in ours if not value.startswith("/inner/")] == []


class TestCsrfInSessions:
    def test_the_token_of_the_page_is_accepted(self, room: Room, settings: Settings) -> None:
        settings.CSRF_USE_SESSIONS = True
        client = Client(enforce_csrf_checks=True)
        client.force_login(room.people["owner"])
        text = client.get(address("room", room)).content.decode()
        token = re.search(r'data-csrf="(\w+)"', text)
        assert token
        assert "csrftoken" not in client.cookies
        send = reverse("messaging:send", args=[room.chat.id])
        json = {"Accept": "application/json"}
        assert client.post(send, {"body": "x"}, headers=json).status_code == 403
        answer = client.post(send, {"body": "x"}, headers={**json, "X-CSRFToken": token[1]})
        assert answer.status_code == 200


class TestSigningOut:
    def test_at_the_url_of_the_site(self, room: Room) -> None:
        client = room.client("member")
        assert 'action="/logout/"' in client.get("/messages/").content.decode()
        client.post("/logout/")
        assert client.get("/messages/").status_code == 302

    def test_at_the_admin_only_for_staff(self, room: Room, settings: Settings) -> None:
        """The admin doesn't sign out others."""
        settings.ROOT_URLCONF = WithoutLogout
        assert 'action="/admin/logout/"' in room.client("staff").get("/messages/").content.decode()
        assert "data-sign-out" not in room.client("member").get("/messages/").content.decode()


class WithoutLogout:
    urlpatterns = (path("admin/", admin.site.urls), path("messages/", include("django_redis_messaging.urls")))


class TestLoginRequiredMiddleware:
    @pytest.fixture(autouse=True)
    def required(self, settings: Settings) -> None:
        name = "django.contrib.auth.middleware.LoginRequiredMiddleware"
        settings.MIDDLEWARE = [*settings.MIDDLEWARE, name]

    def test_pages_redirect_to_sign_in_and_json_requests_get_json(self, room: Room) -> None:
        assert code(room.get("anonymous", "room_feed")) == (401, "sign_in")
        answer = room.get("anonymous", "room", json=False)
        assert answer.status_code == 302
        assert answer["Location"] == f"/sign-in/?next={address('room', room)}"
        assert room.get("owner", "room", json=False).status_code == 200


class TestStaticFiles:
    @pytest.fixture
    def hashed(self, tmp_path: Path) -> Iterator[Path]:
        backend = "django.contrib.staticfiles.storage.ManifestStaticFilesStorage"
        storages = {
            "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
            "staticfiles": {"BACKEND": backend},
        }
        with override_settings(STATIC_ROOT=tmp_path, STORAGES=storages, DEBUG=False):
            call_command("collectstatic", interactive=False, verbosity=0)
            for plain in (tmp_path / "django_redis_messaging").iterdir():
                # Some sites serve only the hashed files.
                if not re.search(r"\.[0-9a-f]{12}\.", plain.name):
                    plain.unlink()
            yield tmp_path

    def test_only_hashed_files_are_needed(self, room: Room, hashed: Path) -> None:
        for name in PAGES:
            for value in re.findall(r'(?:src|href)="/static/([^"]+)"', page(room, name)):
                assert (hashed / value).is_file(), value

    def test_every_file_is_found(self) -> None:
        scripts = ("common", "chats", "room", "composer", "picker", "contacts", "notifications", "bell")
        for name in ("messaging.css", "bell.css", *(f"{script}.js" for script in scripts)):
            assert finders.find(f"django_redis_messaging/{name}")


class Twice:
    """URLs of a site that includes the pages twice, in two namespaces."""

    urlpatterns = (
        path("messages/", include("django_redis_messaging.urls")),
        path("talk/", include("django_redis_messaging.urls", namespace="talk")),
    )


class TestLayout:
    def test_users_get_the_admin_layout_and_staff_its_sidebar(self, room: Room) -> None:
        text = page(room, "chats", "staff")
        assert 'id="nav-sidebar"' in text and "Welcome" in text
        text = page(room, "chats", "member")
        assert 'id="header"' in text
        assert 'id="nav-sidebar"' not in text and reverse("admin:index") + '"' not in text

    def test_without_an_admin_the_layout_is_standalone(self, room: Room, alone: None) -> None:
        for name in PAGES:
            text = page(room, name)
            assert "drm-alone" in text and "admin/" not in text
            assert Violations(text).found == []

    def test_pages_and_changes_lead_to_their_own_namespace(self, room: Room, settings: Settings) -> None:
        settings.ROOT_URLCONF = Twice
        for name in PAGES:
            answer = room.client("owner").get(address(name, room).replace("messages", "talk", 1))
            text = answer.content.decode()
            assert '"/talk/' in text and '"/messages/' not in text, name
        leave = reverse("talk:leave", args=[room.chat.id])
        assert room.client("member").post(leave)["Location"] == "/talk/"

    def test_messages_and_user_in_the_context_are_those_of_django(self, room: Room) -> None:
        for name in PAGES:
            answer = room.client("owner").get(address(name, room))
            assert answer.context["user"] == room.people["owner"]
            assert list(answer.context["messages"]) == []

    def test_a_site_can_override_the_base_template(
        self, room: Room, settings: Settings, tmp_path: Path
    ) -> None:
        own = tmp_path / "django_redis_messaging" / "base.html"
        own.parent.mkdir()
        names = ("title", "extra_head", "extra_js", "breadcrumbs", "content")
        blocks = "".join(f"{{% block {name} %}}{{% endblock %}}" for name in names)
        own.write_text(f"<html>The site's own {blocks}</html>")
        settings.TEMPLATES = [{**settings.TEMPLATES[0], "DIRS": [tmp_path]}]
        for name in PAGES:
            text = page(room, name)
            assert text.startswith("<html>The site's own")
            assert "messaging.css" in text and 'id="drm"' in text


def menu(request: HttpRequest) -> dict[str, Any]:
    """The context processor of a site whose menu has the name of a variable of the pages."""
    return {"sections": ["Menu"]}


class TestLayoutSetting:
    #: every block that templates of this app have, and more
    NAMES = sorted(
        {"css", "footer", "javascript"}.union(
            *(
                re.findall(r"{% block (\w+)", one.read_text())
                for one in (PACKAGE / "templates").rglob("*.html")
            )
        )
        - {"title", "content"}
    )
    BASE = (
        "{% load messaging %}<html><title>{% block title %}{% endblock %} - Our site</title>"
        + "".join(f"<i>{{% block {name} %}}ours-{name}{{% endblock %}}</i>" for name in NAMES)
        + "{% for message in messages %}{{ message }}{% endfor %}{{ user.username }}{% messaging_bell %}"
        + "<main>{% block content %}{% endblock %}</main></html>"
    )

    def title(self, text: str) -> str:
        """The title as browsers show it: white space counts as one space."""
        return " ".join(text.partition("<title>")[2].partition("</title>")[0].split())

    @pytest.fixture
    def base(self, settings: Settings, tmp_path: Path) -> None:
        """The pages are in a template of the site, which extends another one."""
        (tmp_path / "skeleton.html").write_text(self.BASE)
        (tmp_path / "base.html").write_text("{% extends 'skeleton.html' %}")
        settings.TEMPLATES = [{**settings.TEMPLATES[0], "DIRS": [tmp_path]}]
        settings.REDIS_MESSAGING = {"LAYOUT": "base.html"}

    def test_admin_and_standalone(self, room: Room, settings: Settings) -> None:
        for layout, mark in (("admin", 'id="header"'), ("standalone", "drm-alone")):
            settings.REDIS_MESSAGING = {"LAYOUT": layout}
            for name in PAGES:
                assert [one for one in ('id="header"', "drm-alone") if one in page(room, name)] == [mark]

    def test_pages_fill_the_title_and_the_content_of_a_template(self, room: Room, base: None) -> None:
        for name in PAGES:
            text = page(room, name)
            assert text.count("<html>") == text.count('id="drm"') == text.count("messaging.css") == 1, name
            before, content = text.split("<main>")
            assert all(f"<i>ours-{one}</i>" in before for one in self.NAMES)
            assert "static/" not in before.partition('<link rel="stylesheet"')[0]
            assert text.count("drm-bell-count") == 1 and "drm-bell-count" in before, "the bell of the site"
            assert "messaging.css" in content and "common.js" in content
            assert Violations(text).found == []
        assert self.title(page(room, "room")) == "Group: Room | Messages - Our site"
        assert "room.js" in page(room, "room").split("<main>")[1]

    def test_variables_of_the_site_and_of_the_page_are_apart(
        self, room: Room, base: None, settings: Settings, tmp_path: Path
    ) -> None:
        names = ("sections", "show", "rows", "more", "chat", "problem", "page_title", "heading", "title")
        shown = " ".join(f"{name}={{{{ {name} }}}}" for name in names)
        (tmp_path / "skeleton.html").write_text(
            f"<title>{{% block title %}}{{% endblock %}}</title><nav>{shown}</nav>"
            "{% with rows='' heading='' message_views='' problem='Ours' %}{% for chat in sections %}"
            "{% if forloop.last %}{% block content %}{% endblock %}{% endif %}{% endfor %}{% endwith %}"
        )
        (templates,) = copy.deepcopy(settings.TEMPLATES)
        templates["OPTIONS"]["context_processors"].append(f"{__name__}.menu")
        settings.TEMPLATES = [templates]
        empty = " ".join(f"{name}=[&#x27;Menu&#x27;]" if name == "sections" else f"{name}=" for name in names)
        for name in PAGES:
            text = page(room, name)
            assert f"<nav>{empty}</nav>" in text, name
            assert text.count('id="drm"') == 1 and "drm-error" not in text
        assert "drm-row" in page(room, "chats") and "No chats yet" not in page(room, "chats")
        assert "Menu" not in page(room, "notifications").partition("</nav>")[2]
        assert self.title(page(room, "room")) == "Group: Room | Messages"
        assert "<bdi>Room</bdi></h1>" in page(room, "room")

    def test_the_site_cannot_turn_off_escaping_in_the_pages(
        self, room: Room, base: None, tmp_path: Path
    ) -> None:
        (tmp_path / "skeleton.html").write_text(
            "{% autoescape off %}<title>{% block title %}{% endblock %}</title>"
            "{% block content %}{% endblock %}{% endautoescape %}"
        )
        room.chat.rename(room.id("owner"), "<script>alert(1)</script>")
        for name in ("chats", "room"):
            text = page(room, name)
            assert "<script>alert" not in text and "&lt;script&gt;alert(1)" in text, name

    def test_problems_and_mails_too(self, room: Room, base: None, away: None) -> None:
        answer = room.get("owner", "room", json=False)
        assert answer.status_code == 503
        assert self.title(answer.content.decode()) == "Messages - Our site"
        answer = Client().get(reverse("messaging:unsubscribe", args=["wrong"]))
        assert answer.status_code == 404
        assert self.title(answer.content.decode()) == "E-mail | Messages - Our site"

    def test_templates_of_the_site_for_single_pages(
        self, room: Room, base: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "extended.html").write_text(
            "{% extends 'django_redis_messaging/contacts.html' %}{% block title %}Friends{% endblock %}"
        )
        (tmp_path / "other.html").write_text("{% extends 'base.html' %}{% block content %}Mine{% endblock %}")
        monkeypatch.setattr(ContactsView, "template_name", "extended.html")
        text = page(room, "contacts")
        assert self.title(text) == "Friends - Our site" and text.count('id="drm"') == 1
        monkeypatch.setattr(ContactsView, "template_name", "other.html")
        assert "<main>Mine</main>" in page(room, "contacts")

    def test_a_base_template_of_the_site_comes_first(self, room: Room, base: None, tmp_path: Path) -> None:
        own = tmp_path / "django_redis_messaging" / "base.html"
        own.parent.mkdir()
        own.write_text("<html>Older {% block content %}{% endblock %}</html>")
        assert page(room, "chats").startswith("<html>Older")


class TestAdmin:
    def test_the_index_has_an_entry_that_redirects_to_the_pages(self, member: Members) -> None:
        boss = client_of(member("boss", is_staff=True, is_superuser=True))
        text = boss.get(reverse("admin:index")).content.decode()
        link = reverse("admin:django_redis_messaging_messages_changelist")
        assert f'href="{link}"' in text
        assert boss.get(link)["Location"] == reverse("messaging:chats")
        for section in SECTIONS:  # of the console
            link = reverse(f"admin:django_redis_messaging_{section.name}_changelist")
            assert f'href="{link}"' in text and link == reverse(f"admin:messaging_{section.name}")
        assert boss.get(reverse("admin:app_list", args=["django_redis_messaging"])).status_code == 200

    def test_no_entry_for_users_who_may_not_use_the_pages_or_if_they_are_not_included(
        self, rf: RequestFactory, settings: Settings
    ) -> None:
        request = rf.get("/")
        entries = {model.__name__: entry for model, entry in admin.site._registry.items()}
        entry = entries["Messages"]
        request.user = User(is_active=True)
        assert entry.has_module_permission(request)
        assert not entries["Locks"].has_module_permission(request)
        request.user = AnonymousUser()
        assert not entry.has_module_permission(request)
        settings.ROOT_URLCONF = type("Nothing", (), {"urlpatterns": ()})
        request.user = User(is_active=True)
        assert not entry.has_module_permission(request)


def test_the_pages_write_nothing_to_the_database(room: Room, django_assert_max_num_queries: Any) -> None:
    client = room.client("owner")
    with django_assert_max_num_queries(6) as captured:
        client.get(address("room", room))
    written = [query["sql"] for query in captured if not query["sql"].startswith("SELECT")]
    assert written == []


@pytest.mark.parametrize(
    "template", sorted((PACKAGE / "templates").rglob("*.html")), ids=lambda path: path.name
)
def test_every_text_can_be_translated(template: Path) -> None:
    text = template.read_text(encoding="utf-8")
    for kept_out in (
        r"\{% comment %\}.*?\{% endcomment %\}",
        r"\{% blocktranslate.*?endblocktranslate %\}",
        r"\{% block (coltype|layout|bodyclass|skip_to) %\}.*?\{% endblock %\}",
        r"\{%.*?%\}|\{\{.*?\}\}",
        r"<[^>]*>",
        r"&\w+;",
    ):
        text = re.sub(kept_out, "", text, flags=re.DOTALL)
    assert not re.search(r"[A-Za-z]{2,}", text), text.split()


class TestTranslations:
    def test_pages_are_translated(self, room: Room, settings: Settings) -> None:
        for language, texts in (
            ("de", ["Nachricht schreiben", "2 Mitglieder"]),
            ("zh-hans", ["输入消息", "2 位成员", 'lang="zh-hans"']),
        ):
            settings.LANGUAGE_CODE = language
            text = page(room, "room")
            assert [one for one in texts if one not in text] == []


class TestDocs:
    TEXT = (PACKAGE.parent / "docs" / "web.md").read_text(encoding="utf-8")

    def test_every_url_is_documented(self) -> None:
        written = dict(re.findall(r"^\| `(\w+)` \| `+ ?([^`]*?) ?`+ \|", self.TEXT, re.MULTILINE))
        routes = {
            str(pattern.name): re.sub(r"<[^>]+>", "<id>", str(pattern.pattern)) for pattern in urlpatterns
        }
        assert written == routes

    def test_every_code_is_documented(self) -> None:
        source = (PACKAGE / "web" / "problems.py").read_text(encoding="utf-8")
        codes = set(re.findall(r'Answer\(\s*\d+,\s*"(\w+)"', source))
        assert len(codes) == 20
        assert {code for code in codes if f"`{code}`" not in self.TEXT} == set()


#: the settings of docs/web.md
DJANGO_POLICY = {
    "script-src": ["<CSP_NONCE_SENTINEL>", "'strict-dynamic'"],
    "require-trusted-types-for": ["'script'"],
    "trusted-types": ["django-redis-messaging"],
}


class Lazy(SimpleLazyObject):
    """A nonce that is false until it is used, like that of Django."""

    def __bool__(self) -> bool:
        return False


@pytest.mark.versions
@pytest.mark.parametrize(
    ("context", "expected"),
    [
        ({}, ""),
        ({"request": SimpleNamespace()}, ""),
        ({"csp_nonce": None, "request": SimpleNamespace(csp_nonce="b")}, ' nonce="b"'),
        ({"csp_nonce": Lazy(lambda: "a"), "request": SimpleNamespace(csp_nonce="b")}, ' nonce="a"'),
        ({"request": SimpleNamespace(csp_nonce=Lazy(lambda: '"<'))}, ' nonce="&quot;&lt;"'),
    ],
)
def test_the_nonce_of_the_site(context: dict[str, object], expected: str) -> None:
    template = Template("{% load messaging %}<script{% messaging_nonce %}>")
    assert template.render(Context(context)) == f"<script{expected}>"


@pytest.mark.versions
def test_every_file_has_it(room: Room, settings: Settings) -> None:
    settings.TEST_POLICY = content_policies.STRICT
    message = reverse("messaging:message", args=[room.chat.id, 1])
    for url in (*(address(name, room) for name in PAGES), message):
        answer = room.client("owner").get(url)
        nonce = re.search(r"'nonce-([^']+)'", answer["Content-Security-Policy"])
        assert nonce
        files = re.findall(r"<(?:script|link)[^>]*django_redis_messaging/[^>]*>", answer.content.decode())
        assert len(files) >= 4, url
        assert [file for file in files if f' nonce="{nonce[1]}"' not in file] == []


@pytest.mark.versions
@pytest.mark.skipif(django.VERSION < (6, 0), reason="Django 6.0 added its own policy")
def test_the_policy_of_django(room: Room, settings: Settings) -> None:
    settings.MIDDLEWARE = ["django.middleware.csp.ContentSecurityPolicyMiddleware", *settings.MIDDLEWARE]
    settings.SECURE_CSP = DJANGO_POLICY
    (templates,) = copy.deepcopy(settings.TEMPLATES)
    templates["OPTIONS"]["context_processors"].append("django.template.context_processors.csp")
    settings.TEMPLATES = [templates]
    answer = room.get("owner", "room", json=False)
    others = "'strict-dynamic'; require-trusted-types-for 'script'; trusted-types django-redis-messaging"
    nonce = re.fullmatch(rf"script-src 'nonce-([^']+)' {others}", answer["Content-Security-Policy"])
    assert nonce
    assert answer.content.decode().count(f'<script type="module" nonce="{nonce[1]}"') == 4
