"""Uses the installed wheel in a new site. Runs in the directory of the site; any failure is an exception."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from django_redis_messaging.devserver.server import EmbeddedServer

SETTINGS = """
import os
INSTALLED_APPS += ["django_redis_messaging"]
ALLOWED_HOSTS = ["testserver"]
LOGIN_URL = "/admin/login/"
REDIS_MESSAGING = {"FOLLOW_USERS": True}
CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
    "messaging": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": os.environ["SITE_REDIS"]},
}
"""
URLS = """
from django.urls import include
urlpatterns += [path("messages/", include("django_redis_messaging.urls"))]
"""
TESTS = """
from django.contrib.auth.models import User
from django.test import TestCase, TransactionTestCase
from django_redis_messaging import Chat, Inbox, Mailbox, notify


class DeletingTests(TransactionTestCase):
    reset_sequences = True

    def test_user_1(self):
        user = User.objects.create_user("ann")
        Chat.create(str(user.pk), ["2"], "Hello")
        self.assertEqual(Inbox("2").unread(), 1)
        user.delete()


class NotifyingTests(TestCase):
    def test_notify(self):
        notify("2", "Hello")
        self.assertEqual(Mailbox("2").unread(), 1)
"""


def expect(condition: object, what: str) -> None:
    """Exit with an error unless the condition is true."""
    if not condition:
        raise SystemExit(f"The wheel does not work in a new site: {what}.")


def add_the_app() -> None:
    """Add the app to the settings and URLs of the site."""
    for name, text in {"settings": SETTINGS, "urls": URLS}.items():
        with Path("shop", f"{name}.py").open("a", encoding="utf-8") as out:
            out.write(text)


def manage(*words: str) -> str:
    """Run manage.py and return its output. A command that fails is an exception."""
    command = [sys.executable, "-W", "error", "manage.py", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603


def use_the_services() -> None:
    """Send and read a message."""
    from django_redis_messaging import Chat, Inbox

    chat = Chat.create("1", ["2"], "Hello from a wheel", title="First")
    expect(Inbox("2").unread() == 1, "the message did not arrive")
    expect(chat.history("2").messages[0].body == "Hello from a wheel", "the message has another body")


def use_the_pages() -> None:
    """Read the message in a page, and find the static files."""
    from django.contrib.auth.models import User
    from django.contrib.staticfiles import finders
    from django.test import Client
    from django.urls import reverse

    reader = [User.objects.create_user(name) for name in ("ann", "bob")][1]
    client = Client()
    expect(client.get(reverse("messaging:chats")).status_code == 302, "the pages are open to anonymous users")
    client.force_login(reader)
    page = client.get(reverse("messaging:chats"))
    expect(page.status_code == 200 and b"First" in page.content, "the chat is not in the list of chats")
    shipped = finders.find("django_redis_messaging", find_all=True)
    expect(shipped and any(Path(shipped[0]).iterdir()), "the static files are missing")


def test_the_site(server: EmbeddedServer) -> None:
    """Run tests of the site, serially and in parallel, which must leave its server alone, or need none."""
    Path("shop", "tests.py").write_text(TESTS, encoding="utf-8")
    runs = [["manage.py", "test"], ["manage.py", "test", "--parallel", "2"]]
    if importlib.util.find_spec("pytest"):
        runs += [["-m", "pytest", "shop/tests.py"], ["-m", "pytest", "-n", "2", "shop/tests.py"]]
    with server.client() as client:
        before = {key: client.dump(key) for key in client.scan_iter()}
        for words in runs:
            subprocess.run([sys.executable, "-W", "error", *words], check=True, capture_output=True)  # noqa: S603
            expect(
                before == {key: client.dump(key) for key in client.scan_iter()}, f"{words} changed its data"
            )
    server.stop()
    for words in runs:
        subprocess.run([sys.executable, "-W", "error", *words], check=True, capture_output=True)  # noqa: S603


def main() -> None:
    import django_redis_messaging

    expect("site-packages" in django_redis_messaging.__file__, "the repository was imported instead")
    add_the_app()
    with EmbeddedServer() as server:
        os.environ |= {"SITE_REDIS": server.url, "DJANGO_SETTINGS_MODULE": "shop.settings"}
        manage("check")
        manage("makemigrations", "--check", "--dry-run")
        manage("migrate", "--verbosity", "0")
        sys.path.insert(0, str(Path.cwd()))
        import django

        django.setup()
        use_the_services()
        use_the_pages()
        test_the_site(server)


if __name__ == "__main__":  # a spawned process imports this module
    main()
