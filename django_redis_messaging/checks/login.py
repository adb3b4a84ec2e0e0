"""Check of the page where people sign in."""

from __future__ import annotations

from urllib.parse import urlsplit

from django.conf import settings
from django.core.checks import CheckMessage, Warning
from django.shortcuts import resolve_url
from django.urls import NoReverseMatch, get_script_prefix, is_valid_path, reverse
from django.utils.translation import get_language

from .deployment import has_pages


def check_login_url(**_: object) -> list[CheckMessage]:
    """Check that LOGIN_URL leads to a page, if the site includes the pages of this app."""
    if not has_pages():
        return []
    try:
        login_url = str(settings.LOGIN_URL)
    except NoReverseMatch as error:  # of reverse_lazy()
        login_url, exists = str(error), False
    else:
        exists = _leads_somewhere(login_url)
    if exists:
        return []
    return [
        Warning(
            f"LOGIN_URL is {login_url!r}, which is no page of this site: whoever opens the messages "
            "without being signed in gets a 404.",
            hint='Set it to the page or the name of a URL where people sign in, such as "admin:login".',
            id="messaging.W017",
        )
    ]


def _leads_somewhere(login_url: str) -> bool:
    """Whether an address or the name of a URL leads to a view, or to another site."""
    address = urlsplit(resolve_url(login_url) if "/" in login_url else _reversed(login_url))
    path = "/" + address.path.removeprefix(get_script_prefix())
    # LocaleMiddleware and CommonMiddleware redirect to these
    language = get_language() or settings.LANGUAGE_CODE
    paths = [path, f"/{language}{path}", f"{path}/", f"/{language}{path}/"]
    return bool(address.netloc) or any(is_valid_path(each) for each in paths)


def _reversed(name: str) -> str:
    try:
        return reverse(name)
    except NoReverseMatch:
        return "/" + name
