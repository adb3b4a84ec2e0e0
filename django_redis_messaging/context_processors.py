"""Context processors for the templates of a site.

TEMPLATES = [{… "OPTIONS": {"context_processors": [… "django_redis_messaging.context_processors.bell"]}}]
"""

from __future__ import annotations

from django.http import HttpRequest

from .web.bell import Bell


def bell(request: HttpRequest) -> dict[str, Bell]:
    """Add `messaging_bell`, with `unread`, `label`, `text` and `shown`.

    Redis is read only if the template uses one of them.
    """
    return {"messaging_bell": Bell.of(request)}
