"""What templates of the site may want to know.

TEMPLATES = [{… "OPTIONS": {"context_processors": [… "django_redis_messaging.context_processors.bell"]}}]
"""

from __future__ import annotations

from django.http import HttpRequest

from .web.bell import Bell


def bell(request: HttpRequest) -> dict[str, Bell]:
    """`messaging_bell`, with `unread`, `label`, `text` and `shown`. Asks Redis when one of them is used, and
    not otherwise."""
    return {"messaging_bell": Bell(request)}
