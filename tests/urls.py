"""URLs of the tests."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [path("admin/", admin.site.urls), path("messages/", include("django_redis_messaging.urls"))]
