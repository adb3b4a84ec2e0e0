"""URLs of sites with the console in other places than the default admin."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.auth.views import LoginView
from django.urls import include, path

from django_redis_messaging.admin import register


class OwnSite(admin.AdminSite):
    """An admin of a site's own, with its own title."""

    site_header = "Back office"


first, second = OwnSite(name="first"), OwnSite(name="second")
for one in (first, second):
    register(one)


class TwoAdmins:
    """URLs of a site with two admins of its own."""

    urlpatterns = (path("first/", first.urls), path("second/", second.urls))


class NoAdmin:
    """URLs of a site without an admin, and without the pages."""

    urlpatterns = (
        path("sign-in/", LoginView.as_view(template_name="admin/login.html")),
        path("console/", include("django_redis_messaging.console.urls")),
    )
