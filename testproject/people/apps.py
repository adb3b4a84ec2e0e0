"""Configuration of the app."""

from django.apps import AppConfig


class PeopleConfig(AppConfig):
    """Connects the signal receivers of this app."""

    name = "people"

    def ready(self) -> None:
        from . import mentions  # noqa: F401
