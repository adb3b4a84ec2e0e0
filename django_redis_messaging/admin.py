"""Entries in the admin's index and sidebar: the pages, and the sections of the console. They have no models.

Another admin site than the default one gets them by `register(site)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.apps import AppConfig, apps
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from .console import SECTIONS

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
else:
    _ModelAdmin = admin.ModelAdmin


class _Meta:
    """The model options that the admin reads."""

    app_label = "django_redis_messaging"
    abstract = swapped = is_composite_pk = False

    def __init__(self, name: str, title: str | Promise) -> None:
        self.object_name = name.capitalize()
        self.model_name = name
        self.verbose_name = self.verbose_name_plural = title
        self.label = f"{self.app_label}.{self.object_name}"
        self.label_lower = f"{self.app_label}.{name}"

    @property
    def app_config(self) -> AppConfig:
        return apps.get_app_config(self.app_label)


class EntryAdmin(_ModelAdmin):
    """An entry that everybody sees who may use what it leads to."""

    def get_model_perms(self, request: HttpRequest) -> dict[str, bool]:
        return {"add": False, "change": False, "delete": False, "view": True}

    def check(self, **kwargs: Any) -> list[Any]:
        # The admin's checks inspect fields, and this entry has none.
        return []

    @property
    def index_name(self) -> str:
        """The name of the URL to which the admin's index links."""
        return f"{self.opts.app_label}_{self.opts.model_name}_changelist"


# The rest of the app is imported in the methods: the admin imports this module in each process of a site, the
# others the Redis client.


class PagesAdmin(EntryAdmin):
    """Redirects users to their chats."""

    def get_urls(self) -> list[URLPattern]:
        return [path("", self.admin_site.admin_view(self.redirect_to_chats), name=self.index_name)]

    def redirect_to_chats(self, request: HttpRequest) -> HttpResponse:
        """Redirect to the page."""
        return redirect("messaging:chats")

    def has_module_permission(self, request: HttpRequest) -> bool:
        from .web import identity

        return _has_pages() and identity.current().may_use(request.user)


class SectionAdmin(EntryAdmin):
    """Contains a section of the console."""

    def get_urls(self) -> list[URLPattern]:
        from .console.urls import patterns

        found = patterns(str(self.opts.model_name), self.admin_site)
        return [*found, path("", found[0].callback, name=self.index_name)]

    def has_module_permission(self, request: HttpRequest) -> bool:
        from .console import access

        return access.current().may_view(request.user)


def _has_pages() -> bool:
    """Whether the URLs of the pages are included."""
    try:
        reverse("messaging:chats")
    except NoReverseMatch:
        return False
    return True


def _entry(name: str, title: str | Promise) -> type:
    """What is registered in place of a model."""
    return type(name.capitalize(), (), {"_meta": _Meta(name, title), "__module__": __name__})


#: what is registered, each with its admin
ENTRIES: dict[type, type[EntryAdmin]] = {
    _entry("messages", _("Messages")): PagesAdmin,
    **{_entry(section.name, section.title): SectionAdmin for section in SECTIONS},
}


def register(site: admin.AdminSite) -> None:
    """Add the entries to an admin site."""
    for entry, entry_admin in ENTRIES.items():
        # register() accepts only a model, or a list of anything
        site.register([entry], entry_admin)


register(admin.site)
