"""URLs of the tests."""

from django.contrib import admin
from django.contrib.auth.views import LoginView, LogoutView
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("sign-in/", LoginView.as_view(template_name="admin/login.html")),
    path("logout/", LogoutView.as_view(next_page="/admin/"), name="logout"),
    path("messages/", include("django_redis_messaging.urls")),
]
