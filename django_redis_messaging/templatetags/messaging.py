"""{% load messaging %}: what any template of the site can show."""

from __future__ import annotations

from typing import Any

from django import template
from django.template import Context

from ..web.bell import Bell

register = template.Library()


@register.inclusion_tag("django_redis_messaging/_bell.html", takes_context=True)
def messaging_bell(context: Context, *, count: bool = True) -> dict[str, Any]:
    """The bell: a link to the notifications, with how many are unread; nothing for who may not use them.

    It brings its own style and script. `count=False` renders it without asking Redis: the script asks.
    A page without a request, as that of an error 500 may be, gets no bell.
    """
    bell = context.get("messaging_bell")
    if not isinstance(bell, Bell):
        request = context.get("request")
        bell = Bell(request) if request is not None else None
    if bell is None or not bell.shown:
        return {"bell": None}
    return {"bell": bell, "counts": count, "here": context.get("drm_tab") == "notifications"}
