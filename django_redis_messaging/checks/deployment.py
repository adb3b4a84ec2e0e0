"""Checks of what protects the pages and the connection to Redis. Only in `check --deploy`; sends nothing."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Warning
from django.urls import NoReverseMatch, reverse
from redis.connection import SSLConnection

from ..core.endpoints import endpoint
from ..core.entries import is_kind_of
from ..core.sockets import Target
from ..errors import MessagingError
from .caches import check_alias, chosen_alias

#: middleware of Django that the pages rely on, with what is missing without it
MIDDLEWARE = {
    "django.middleware.security.SecurityMiddleware": "headers against sniffing and referrers, and HTTPS",
    "django.middleware.csrf.CsrfViewMiddleware": "other sites could post forms for a user who is signed in",
    "django.middleware.clickjacking.XFrameOptionsMiddleware": "other sites could show the pages in a frame",
}


def check_middleware(**_: object) -> list[CheckMessage]:
    """Check that the middleware that protects the pages is installed, if the pages are."""
    installed = django_settings.MIDDLEWARE or []
    missing = [one for one in MIDDLEWARE if not any(is_kind_of(path, one) for path in installed)]
    if not missing or not has_pages():
        return []
    effects = "; ".join(f"{path.rpartition('.')[2]} ({MIDDLEWARE[path]})" for path in missing)
    lines = "".join(f'\n    "{path}",' for path in missing)
    return [
        Warning(
            f"The site has the pages of this app, but MIDDLEWARE lacks {effects}.",
            hint=f"Add to MIDDLEWARE:{lines}",
            id="messaging.W014",
        )
    ]


def check_transport(**_: object) -> list[CheckMessage]:
    """Check that a Redis on another machine is reached by TLS and asks for a password."""
    alias = chosen_alias()
    if alias is None or any(message.is_serious() for message in check_alias()):
        return []
    try:
        targets = list(endpoint(alias).configured())
    except MessagingError:
        return []  # another check reports it
    remote = [target for target in targets if _is_remote(target)]
    found = (
        _plain(alias, _names(remote, lambda target: not _has_tls(target))),
        _open(alias, _names(remote, lambda target: not _has_password(target))),
    )
    return [message for message in found if message is not None]


def _plain(alias: str, names: str) -> CheckMessage | None:
    if not names:
        return None
    return Warning(
        f"CACHES[{alias!r}] connects to {names} without TLS: whoever can read this network can read and "
        "change all messages.",
        hint="Write rediss:// instead of redis:// in LOCATION. With Sentinels, add to OPTIONS: "
        '"CONNECTION_POOL_KWARGS": {"ssl": True}, "SENTINEL_KWARGS": {"ssl": True}. See docs/security.md.',
        id="messaging.W015",
    )


def _open(alias: str, names: str) -> CheckMessage | None:
    if not names:
        return None
    return Warning(
        f"CACHES[{alias!r}] connects to {names} without a password: whoever can reach it can read and delete "
        "all messages.",
        hint="Create a user with the ACL line of docs/security.md, and write its name and password into "
        "LOCATION: rediss://messaging:…@host:6379/1. With Sentinels, give them a password too: "
        '"SENTINEL_KWARGS": {"password": "…"} in OPTIONS.',
        id="messaging.W016",
    )


def has_pages() -> bool:
    """Whether the site includes the pages of this app."""
    if not hasattr(django_settings, "ROOT_URLCONF"):  # a process of a site without pages
        return False
    try:
        return bool(reverse("messaging:chats"))
    except NoReverseMatch:
        return False


def _names(targets: list[Target], is_affected: Callable[[Target], bool]) -> str:
    return ", ".join(_name(target.parameters) for target in targets if is_affected(target))


def _name(parameters: dict[str, Any]) -> str:
    return f"{parameters['host']}:{parameters.get('port', 6379)}"


def _is_remote(target: Target) -> bool:
    """Whether it is on another machine. The host of a primary behind Sentinels is the name of the service."""
    if target.parameters.get("path"):
        return False
    host = str(target.parameters.get("host", "localhost"))
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"


def _has_tls(target: Target) -> bool:
    return issubclass(target.kind, SSLConnection)


def _has_password(target: Target) -> bool:
    return bool(target.parameters.get("password") or target.parameters.get("credential_provider"))
