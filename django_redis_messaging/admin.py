"""An entry in the admin's index and sidebar that links to the pages. It has no model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.apps import AppConfig, apps
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.utils.translation import gettext_lazy as _

from .web import identity

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
else:
    _ModelAdmin = admin.ModelAdmin


class _Meta:
    """The model options that the admin reads."""

    app_label = "django_redis_messaging"
    model_name = "chats"
    object_name = "Chats"
    verbose_name = verbose_name_plural = _("Messages")
    label = "django_redis_messaging.Chats"
    label_lower = "django_redis_messaging.chats"
    abstract = swapped = is_composite_pk = False

    @property
    def app_config(self) -> AppConfig:
        return apps.get_app_config(self.app_label)


class ChatsEntry:
    """Registered in the admin in place of a model."""

    _meta = _Meta()


class ChatsEntryAdmin(_ModelAdmin):
    """Redirects users to the pages."""

    def get_urls(self) -> list[URLPattern]:
        name = f"{_Meta.app_label}_{_Meta.model_name}_changelist"
        return [path("", self.admin_site.admin_view(self.redirect_to_chats), name=name)]

    def redirect_to_chats(self, request: HttpRequest) -> HttpResponse:
        """Redirect to the list of chats."""
        return redirect("messaging:chats")

    def has_module_permission(self, request: HttpRequest) -> bool:
        return _has_pages() and identity.current().may_use(request.user)

    def get_model_perms(self, request: HttpRequest) -> dict[str, bool]:
        return {"add": False, "change": False, "delete": False, "view": True}

    def check(self, **kwargs: Any) -> list[Any]:
        # The admin's checks inspect fields, and this entry has none.
        return []


def _has_pages() -> bool:
    """Whether the URLs of the pages are included."""
    try:
        reverse("messaging:chats")
    except NoReverseMatch:
        return False
    return True


# register() accepts only a model, or a list of anything.
admin.site.register([ChatsEntry], ChatsEntryAdmin)
