"""Checks of the pages: their layout, who can sign in, what others see of users, whom they can find, and how
changes arrive.

They report nothing if the site doesn't include the pages.
"""

from __future__ import annotations

from importlib.util import find_spec
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.checks import CheckMessage, Warning
from django.db.models import EmailField
from django.shortcuts import resolve_url
from django.urls import NoReverseMatch, get_script_prefix, is_valid_path, reverse
from django.utils.translation import get_language

from .. import conf
from ..checks.settings import usable_alias
from ..core.testruns import is_kind_of
from ..errors import ConfigurationError
from ..services.directories import Directory
from .identity import Identity, current
from .layout import check_layout

#: middleware of Django that the pages rely on, with what is missing without it
MIDDLEWARE = {
    "django.middleware.security.SecurityMiddleware": "headers against sniffing and referrers, and HTTPS",
    "django.middleware.csrf.CsrfViewMiddleware": "other sites could post forms for a user who is signed in",
    "django.middleware.clickjacking.XFrameOptionsMiddleware": "other sites could show the pages in a frame",
}
#: users whose directories are read, if the identity of the site chooses them
SAMPLE_USERS = 20
#: what to do about a LOGIN_URL
SIGN_IN = (
    'Set it to a page where everybody can sign in, such as LOGIN_URL = "login" with '
    'path("accounts/", include("django.contrib.auth.urls")) and a template registration/login.html.'
)


def has_pages() -> bool:
    """Whether the site includes the pages of this app."""
    if not hasattr(settings, "ROOT_URLCONF"):  # a process of a site without pages
        return False
    try:
        return bool(reverse("messaging:chats"))
    except NoReverseMatch:
        return False


def check_pages() -> list[CheckMessage]:
    """Check the layout of the pages, where users sign in, and what others see of them."""
    found = (check_layout(), _check_login_url(), _check_labels()) if has_pages() else ()
    return [message for message in found if message is not None]


def check_deployed_pages() -> list[CheckMessage]:
    """Check what protects the pages, how changes arrive, and, on the server, whether anybody can be found."""
    found = (_check_middleware(), _check_asgi(), _check_directories()) if has_pages() else ()
    return [message for message in found if message is not None]


def _check_login_url() -> CheckMessage | None:
    try:
        login_url = str(settings.LOGIN_URL)
    except NoReverseMatch as error:  # of reverse_lazy()
        return _leads_nowhere(str(error))
    address = urlsplit(resolve_url(login_url) if "/" in login_url else _reversed(login_url))
    if address.netloc:  # another site
        return None
    path = "/" + address.path.removeprefix(get_script_prefix())
    # LocaleMiddleware and CommonMiddleware redirect to these
    language = get_language() or settings.LANGUAGE_CODE
    paths = (path, f"/{language}{path}", f"{path}/", f"/{language}{path}/")
    match: Any = next(filter(None, map(is_valid_path, paths)), None)
    if match is None:
        return _leads_nowhere(login_url)
    return _leads_to_admin(login_url) if _is_for_staff(match.func) else None


def _reversed(name: str) -> str:
    try:
        return reverse(name)
    except NoReverseMatch:
        return "/" + name


def _leads_nowhere(login_url: str) -> CheckMessage:
    return Warning(
        f"LOGIN_URL is {login_url!r}, which is no page of this site: whoever opens the messages without "
        "being signed in gets a 404.",
        hint=SIGN_IN,
        id="messaging.W017",
    )


def _is_for_staff(view: Any) -> bool:
    """Whether a view is the sign-in page of an admin site with its usual form."""
    site = getattr(view, "__self__", None)
    if not is_kind_of(type(site), "django.contrib.admin.sites.AdminSite"):
        return False
    usual = "django.contrib.admin.forms.AdminAuthenticationForm"
    return is_kind_of(getattr(site, "login_form", None) or usual, usual)


def _leads_to_admin(login_url: str) -> CheckMessage:
    return Warning(
        f"LOGIN_URL is {login_url!r}, the sign-in page of the admin, which accepts staff only: other users "
        "can't sign in to read their messages.",
        hint=f"{SIGN_IN} If only staff use the messages, silence this check.",
        id="messaging.W028",
    )


def _check_labels() -> CheckMessage | None:
    model: Any
    try:
        identity, model = type(current()), get_user_model()
    except Exception:  # IDENTITY can be anything; other checks report it
        return None
    if identity.label is not Identity.label or identity.labels is not Identity.labels:
        return None
    field = model._meta.get_field(model.USERNAME_FIELD)
    if not isinstance(field, EmailField) and field.name != model.get_email_field_name():
        return None
    affected = "users without a full name are" if hasattr(model, "get_full_name") else "all users are"
    return Warning(
        f"The user name of {model._meta.label} is an e-mail address ({field.name}): {affected} shown by it "
        "to others, in chats, suggestions and notifications.",
        hint="Choose another text in a class such as\n"
        "    class SiteIdentity(Identity):\n"
        "        def label(self, user):\n"
        '            return user.nickname or f"User {user.pk}"\n'
        f"and write its dotted path into {conf.NAME}: "
        '{"IDENTITY": "shop.chat.SiteIdentity"}. Then run manage.py sync_directory. If users may see the '
        "addresses, silence this check.",
        id="messaging.W029",
    )


def _check_middleware() -> CheckMessage | None:
    installed = settings.MIDDLEWARE or []
    missing = [one for one in MIDDLEWARE if not any(is_kind_of(path, one) for path in installed)]
    if not missing:
        return None
    effects = "; ".join(f"{path.rpartition('.')[2]} ({MIDDLEWARE[path]})" for path in missing)
    lines = "".join(f'\n    "{path}",' for path in missing)
    return Warning(
        f"The site has the pages of this app, but MIDDLEWARE lacks {effects}.",
        hint=f"Add to MIDDLEWARE:{lines}",
        id="messaging.W014",
    )


def _check_asgi() -> CheckMessage | None:
    """A check can't know which server will run the site, but whether there is an application for one."""
    package, is_usual, _ = str(settings.WSGI_APPLICATION or "").partition(".wsgi.")
    if getattr(settings, "ASGI_APPLICATION", None) or not is_usual or not _is_live():
        return None
    try:
        if find_spec(f"{package}.asgi") is not None:
            return None
    except ImportError:  # Django reports it when the site starts
        return None
    return Warning(
        f"LIVE is True, but the site has no ASGI application: there is no module {package}.asgi, and "
        "ASGI_APPLICATION is not set. Under WSGI, the pages poll every 2 to 15 seconds, and changes are not "
        "pushed.",
        hint=f"Create {package.replace('.', '/')}/asgi.py with application = get_asgi_application() of "
        "django.core.asgi, and run it with an ASGI server such as uvicorn. If polling is enough, set "
        f'{conf.NAME} = {{"LIVE": False}}.',
        id="messaging.W030",
    )


def _is_live() -> bool:
    try:
        return bool(conf.current().LIVE)
    except ConfigurationError:  # another check reports it
        return False


def _check_directories() -> CheckMessage | None:
    try:
        guilds = _directories(current()) if usable_alias() is not None else ()
        if not guilds or any(Directory(guild).size() for guild in guilds):
            return None
    except Exception:  # of the site's identity, or of its database; another check reports that of Redis
        return None
    return Warning(
        f"The directories of the users ({', '.join(guilds)}) are empty: nobody can find anybody to write to.",
        hint=f'Run manage.py sync_directory once. {conf.NAME} = {{"FOLLOW_USERS": True}} keeps them filled.',
        id="messaging.W031",
    )


def _directories(identity: Identity) -> list[str]:
    """The directories of all users; if the identity of the site chooses them, those of some users."""
    if type(identity).directories is Identity.directories:
        return list(identity.directories(None))
    found = (guild for user in identity.users()[:SAMPLE_USERS] for guild in identity.directories(user))
    return list(islice(dict.fromkeys(found), SAMPLE_USERS))
