"""Entries in the admin's index and sidebar that link to the pages. They have no models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.apps import AppConfig, apps
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

if TYPE_CHECKING:
    from .web.identity import Identity

    _ModelAdmin = admin.ModelAdmin[Any]
else:
    _ModelAdmin = admin.ModelAdmin


class _Meta:
    """The model options that the admin reads."""

    app_label = "django_redis_messaging"
    abstract = swapped = is_composite_pk = False

    def __init__(self, object_name: str, title: str | Promise) -> None:
        self.object_name = object_name
        self.model_name = object_name.lower()
        self.verbose_name = self.verbose_name_plural = title
        self.label = f"{self.app_label}.{object_name}"
        self.label_lower = self.label.lower()

    @property
    def app_config(self) -> AppConfig:
        return apps.get_app_config(self.app_label)


class ChatsEntry:
    """Registered in the admin in place of a model."""

    _meta = _Meta("Chats", _("Messages"))


class LimitsEntry:
    """The same for the page of rate limits."""

    _meta = _Meta("Limits", _("Rate limits"))


class LocksEntry:
    """The same for the page of locks."""

    _meta = _Meta("Locks", _("Locks"))


class ChatsEntryAdmin(_ModelAdmin):
    """Redirects users to the pages."""

    #: the name of the page
    page = "chats"

    def get_urls(self) -> list[URLPattern]:
        name = f"{self.opts.app_label}_{self.opts.model_name}_changelist"
        return [path("", self.admin_site.admin_view(self.redirect_to_page), name=name)]

    def redirect_to_page(self, request: HttpRequest) -> HttpResponse:
        """Redirect to the page."""
        return redirect(f"messaging:{self.page}")

    def has_module_permission(self, request: HttpRequest) -> bool:
        return _has_pages() and _identity().may_use(request.user)

    def get_model_perms(self, request: HttpRequest) -> dict[str, bool]:
        return {"add": False, "change": False, "delete": False, "view": True}

    def check(self, **kwargs: Any) -> list[Any]:
        # The admin's checks inspect fields, and this entry has none.
        return []


class LimitsEntryAdmin(ChatsEntryAdmin):
    """Redirects operators to the rate limits."""

    page = "limits"

    def has_module_permission(self, request: HttpRequest) -> bool:
        return super().has_module_permission(request) and _identity().may_operate(request.user)


class LocksEntryAdmin(LimitsEntryAdmin):
    """Redirects operators to the locks."""

    page = "locks"


def _identity() -> Identity:
    # not at the top: the admin imports this module in each process of a site, this one the Redis client
    from .web import identity

    return identity.current()


def _has_pages() -> bool:
    """Whether the URLs of the pages are included."""
    try:
        reverse("messaging:chats")
    except NoReverseMatch:
        return False
    return True


# register() accepts only a model, or a list of anything.
admin.site.register([ChatsEntry], ChatsEntryAdmin)
admin.site.register([LimitsEntry], LimitsEntryAdmin)
admin.site.register([LocksEntry], LocksEntryAdmin)
