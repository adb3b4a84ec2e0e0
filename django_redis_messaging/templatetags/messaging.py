"""Template tags for any template of the site: {% load messaging %}."""

from __future__ import annotations

from typing import Any

from django import template
from django.forms.boundfield import BoundField
from django.template import Context, TemplateSyntaxError
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html

from ..errors import ConfigurationError
from ..web.base import nonce
from ..web.bell import Bell, unread_messages
from ..web.bell import text as shown_count
from ..web.fields import ContactField

register = template.Library()


@register.inclusion_tag("django_redis_messaging/_bell.html", takes_context=True)
def messaging_bell(context: Context, *, count: bool = True) -> dict[str, Any]:
    """Render the notification bell: a link to the notifications with the number of unread ones.

    Includes its style sheet and script. Users who may not use the pages get nothing. `count=False` renders
    it without reading Redis; the script then fetches the count. Without a request in the context, such as
    on an error page, nothing is rendered. The pages of this app leave out theirs if the layout of the site
    has rendered one before.
    """
    request = context.get("request")
    bell = Bell.of(request) if request is not None else None
    in_page = "drm_bell" in context
    if bell is None or not bell.shown or (in_page and bell.rendered):
        return {"bell": None}
    _require_urls()
    bell.rendered = True
    return {
        "bell": bell,
        "counts": count,
        "here": context.get("drm_tab") == "notifications",
        # the style sheet of the pages contains that of the bell there
        "in_page": in_page,
        "has_keys": "drm_layout" in context,
        "csp_nonce": nonce(context),
    }


def _require_urls() -> None:
    """Raise an error that says what to do if the site doesn't include the pages, unlike that of {% url %}."""
    try:
        reverse("messaging:notifications")
    except NoReverseMatch as error:
        raise ConfigurationError(
            "{% messaging_bell %} links to a page of this app, which is not among the URLs of the site: add "
            'path("messages/", include("django_redis_messaging.urls")).'
        ) from error


@register.inclusion_tag("django_redis_messaging/_contact_field.html", takes_context=True)
def contact_autocomplete(context: Context, field: BoundField) -> dict[str, Any]:
    """Render a ContactField of a form, with its style sheet and script before the first one of the page."""
    if not isinstance(field, BoundField) or not isinstance(field.field, ContactField):
        raise TemplateSyntaxError(
            "{% contact_autocomplete %} needs a field of a form that is a ContactField."
        )
    with_assets = "contact_autocomplete" not in context.render_context
    context.render_context["contact_autocomplete"] = True
    return {"field": field, "with_assets": with_assets, "csp_nonce": nonce(context)}


@register.simple_tag(takes_context=True)
def messaging_unread(context: Context) -> str:
    """Render the number of unread messages in the user's chats.

    Nothing for no unread messages, for users who may not use the pages, and if Redis is unavailable. The
    template can also store it: {% messaging_unread as unread %}{% if unread %}…{% endif %}.
    """
    request = context.get("request")
    return shown_count(unread_messages(request)) if request is not None else ""


@register.simple_tag(takes_context=True)
def messaging_nonce(context: Context) -> str:
    """Render the attribute `nonce` of a script or style sheet, if the site's policy has a nonce."""
    value = nonce(context)
    return format_html(' nonce="{}"', value) if value else ""
