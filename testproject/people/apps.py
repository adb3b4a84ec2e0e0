"""The people of the demo."""

from django.apps import AppConfig


class PeopleConfig(AppConfig):
    """Connects the receivers of this app."""

    name = "people"

    def ready(self) -> None:
        from . import mentions  # noqa: F401
