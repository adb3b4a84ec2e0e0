"""The frame around the pages: the admin's own where the site has one, else a small one."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse

ADMIN = "admin/base_site.html"
ALONE = "django_redis_messaging/alone.html"


def frame(request: HttpRequest) -> dict[str, Any]:
    """What base.html needs to know: `drm_frame`, the template it extends, and that one's context."""
    if not has_admin():
        return {"drm_frame": ALONE}
    from django.contrib.admin import site

    # A user model need not have is_staff at all.
    if getattr(request.user, "is_staff", False) and request.user.is_active:
        return {**site.each_context(request), "drm_frame": ADMIN, "drm_staff": True}
    return {
        "drm_frame": ADMIN,
        "site_title": site.site_title,
        "site_header": site.site_header,
        "has_permission": False,
        "is_nav_sidebar_enabled": False,
        "is_popup": False,
        "available_apps": [],
    }


def has_admin() -> bool:
    """Whether the admin is installed and its addresses are included."""
    if not apps.is_installed("django.contrib.admin"):
        return False
    try:
        reverse("admin:index")
    except NoReverseMatch:
        return False
    return True
