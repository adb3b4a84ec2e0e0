"""The URLconf to include: `path("messages/", include("django_redis_messaging.urls"))`."""

from .web.urls import app_name, urlpatterns

__all__ = ["app_name", "urlpatterns"]
