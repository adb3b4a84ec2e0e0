"""An entry in the admin's index and sidebar that leads to the pages. There is no model behind it."""

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
    """What the admin asks of a model before it shows it."""

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
    """Stands where the admin wants a model."""

    _meta = _Meta()


class ChatsEntryAdmin(_ModelAdmin):
    """Leads to the pages, whoever may use them."""

    def get_urls(self) -> list[URLPattern]:
        name = f"{_Meta.app_label}_{_Meta.model_name}_changelist"
        return [path("", self.admin_site.admin_view(self.lead), name=name)]

    def lead(self, request: HttpRequest) -> HttpResponse:
        """Go to the pages."""
        return redirect("messaging:chats")

    def has_module_permission(self, request: HttpRequest) -> bool:
        return _included() and identity.current().may_use(request.user)

    def get_model_perms(self, request: HttpRequest) -> dict[str, bool]:
        return {"add": False, "change": False, "delete": False, "view": True}

    def check(self, **kwargs: Any) -> list[Any]:
        # Admin's checks are about fields, and there are none.
        return []


def _included() -> bool:
    try:
        reverse("messaging:chats")
    except NoReverseMatch:
        return False
    return True


# In a list: what isn't in one must be a model.
admin.site.register([ChatsEntry], ChatsEntryAdmin)
