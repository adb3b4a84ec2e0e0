"""The layout around the pages: the admin's own where the site has one, else a small standalone one."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse

ADMIN_TEMPLATE = "admin/base_site.html"
STANDALONE_TEMPLATE = "django_redis_messaging/alone.html"


def layout_context(request: HttpRequest) -> dict[str, Any]:
    """The context of base.html: `drm_layout`, the template it extends, and what that template needs."""
    # A custom user model may have no is_staff.
    is_staff = getattr(request.user, "is_staff", False) and request.user.is_active
    context = {"drm_sign_out": _sign_out_url(is_staff=is_staff)}
    if not has_admin():
        return {**context, "drm_layout": STANDALONE_TEMPLATE, "drm_alone": True}
    from django.contrib.admin import site

    if is_staff:
        return {**context, **site.each_context(request), "drm_layout": ADMIN_TEMPLATE, "drm_staff": True}
    return {
        **context,
        "drm_layout": ADMIN_TEMPLATE,
        "site_title": site.site_title,
        "site_header": site.site_header,
        "has_permission": False,
        "is_nav_sidebar_enabled": False,
        "is_popup": False,
        "available_apps": [],
    }


def has_admin() -> bool:
    """Whether the admin is installed and its URLs are included."""
    if not apps.is_installed("django.contrib.admin"):
        return False
    try:
        reverse("admin:index")
    except NoReverseMatch:
        return False
    return True


def _sign_out_url(*, is_staff: bool) -> str:
    """The site's own URL to sign out, as Django or django-allauth names it, else the admin's, which signs out
    only staff; empty if there is none."""
    for name in ("logout", "account_logout", *(["admin:logout"] if is_staff else [])):
        try:
            return reverse(name)
        except NoReverseMatch:
            pass
    return ""
