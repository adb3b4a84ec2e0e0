"""The nonce of the site's Content-Security-Policy."""

from __future__ import annotations

from django.template import Context


def nonce(context: Context) -> str:
    """The nonce for scripts and style sheets, or an empty string if the site has none.

    It is `csp_nonce` in the context (Django's context processor `csp`), or an attribute of the request with
    this name (django-csp).
    """
    # Not `or`: a lazy nonce is false until it is used.
    value = context.get("csp_nonce")
    if value is None:
        value = getattr(context.get("request"), "csp_nonce", None)
    return "" if value is None else str(value)
