"""The configuration of the app."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class MessagingConfig(AppConfig):
    """Registers the checks. Defines no models and opens no connections."""

    name = "django_redis_messaging"
    label = "django_redis_messaging"
    verbose_name = _("Messaging")

    def ready(self) -> None:
        from . import checks  # noqa: F401  (registers them)
