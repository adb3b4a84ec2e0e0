"""The frame around the pages: that of the admin, of this app, or of the site (`LAYOUT`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.core.checks import CheckMessage, Error
from django.http import HttpRequest
from django.template import Context, Engine, Template, Variable
from django.template.base import Node
from django.template.loader import get_template
from django.template.loader_tags import BlockNode, ExtendsNode
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, reverse
from django.utils.safestring import SafeString
from django.views.decorators.debug import sensitive_variables

from .. import conf
from ..errors import ConfigurationError

if TYPE_CHECKING:
    from django.contrib.admin import AdminSite

#: values of LAYOUT that are not the name of a template
AUTO, ADMIN, STANDALONE = "auto", "admin", "standalone"
#: the templates that base.html extends
ADMIN_TEMPLATE = "admin/base_site.html"
STANDALONE_TEMPLATE = "django_redis_messaging/alone.html"
SITE_TEMPLATE = "django_redis_messaging/in_site.html"
#: the template that in_site.html includes: it extends that of the site
FRAME_TEMPLATE = "django_redis_messaging/site.html"
#: variables with the templates that base.html and site.html extend
EXTENDED_BY_PAGES = ("drm_layout", "drm_site")


class _Page(TemplateResponse):
    """The response with a page. Django renders it after the view, but what users have written must not get
    into error mail then either: see MessagingView.dispatch."""

    @property
    @sensitive_variables()
    def rendered_content(self) -> str:
        return super().rendered_content


def page_in_layout(
    request: HttpRequest,
    layout: str,
    template_name: str,
    context: Mapping[str, Any],
    *,
    status: int,
    admin_site: AdminSite | None = None,
) -> TemplateResponse:
    """The response with the page of a template, inside the layout. The admin's is that of `admin_site`, or of
    the default one."""
    frame = _Frame(template_name, frozenset(context))
    everything = {**layout_context(request, layout, admin_site), "drm_frame": frame, **context}
    return _Page(request, template_name, everything, status=status)


@dataclass(frozen=True)
class _Frame:
    """The template of the site around a page. in_site.html includes it."""

    page: str
    #: the variables of the page
    names: frozenset[str]

    def render(self, context: Context) -> SafeString:
        """Render the template of the site, which sees no variables of the page but `drm_*`."""
        engine: Engine = context.template.engine  # type: ignore[union-attr]
        frame = copy(context)
        frame.dicts = [self._without_page(one) if "drm_frame" in one else one for one in context.dicts]
        page = engine.get_template(self.page)
        parts = {f"drm_{name}": _Part(page, name, context) for name in ("title", "content")}
        with frame.push(**parts):
            return engine.get_template(FRAME_TEMPLATE).render(frame)

    def _without_page(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: value
            for name, value in variables.items()
            if name.startswith("drm_") or name not in self.names
        }


@dataclass(frozen=True)
class _Part:
    """The title or the content of a page. site.html includes it."""

    page: Template
    name: str
    #: that of the page: nothing that the site's template sets around the part changes it, such as autoescape
    context: Context

    def render(self, _: Context) -> SafeString:
        with self.context.push(drm_part=self.name):
            return self.page.render(self.context)


def layout_context(request: HttpRequest, layout: str, admin_site: AdminSite | None = None) -> dict[str, Any]:
    """The context of base.html: `drm_layout`, the template it extends, and what that template needs."""
    uses_admin = is_staff(request.user)
    context = {"drm_sign_out": _sign_out_url(uses_admin=uses_admin)}
    if layout == AUTO:
        layout = ADMIN if has_admin() else STANDALONE
    if layout == STANDALONE:
        return {**context, "drm_layout": STANDALONE_TEMPLATE, "drm_alone": True}
    if layout != ADMIN:
        return {**context, "drm_layout": SITE_TEMPLATE, "drm_site": layout}
    from django.contrib.admin import site as default

    site = admin_site or default
    # its own check has let the user in, where the page is one of that site
    if uses_admin or admin_site is not None:
        return {**context, **site.each_context(request), "drm_layout": ADMIN_TEMPLATE, "drm_staff": True}
    return {
        **context,
        "drm_layout": ADMIN_TEMPLATE,
        "site_title": site.site_title,
        "site_header": site.site_header,
        "has_permission": False,
        "is_nav_sidebar_enabled": False,
        "is_popup": False,
        "available_apps": [],
    }


def has_admin() -> bool:
    """Whether the admin is installed and its URLs are included."""
    if not apps.is_installed("django.contrib.admin"):
        return False
    try:
        reverse("admin:index")
    except NoReverseMatch:
        return False
    return True


def is_staff(user: object) -> bool:
    """Whether the user may use the admin. A custom user model may have no is_staff."""
    return bool(getattr(user, "is_staff", False) and getattr(user, "is_active", False))


def _sign_out_url(*, uses_admin: bool) -> str:
    """The site's own URL to sign out, as Django or django-allauth names it, else the admin's, which signs out
    only staff; empty if there is none."""
    for name in ("logout", "account_logout", *(["admin:logout"] if uses_admin else [])):
        try:
            return reverse(name)
        except NoReverseMatch:
            pass
    return ""


def check_layout() -> CheckMessage | None:
    """Check that LAYOUT names a layout that the pages can fill."""
    try:
        layout = conf.current().LAYOUT
    except ConfigurationError:
        return None  # another check reports it
    if layout in (AUTO, STANDALONE) or not isinstance(layout, str):
        return None
    problem = _problem_of_admin() if layout == ADMIN else _problem_of_template(layout)
    if problem is None:
        return None
    text, hint = problem
    return Error(f"{conf.NAME}['LAYOUT'] is {layout!r}, {text}.", hint=hint, id="messaging.E013")


def _problem_of_admin() -> tuple[str, str] | None:
    """Why the pages can't have the layout of the admin, and what to do; None if they can."""
    if has_admin():
        return None
    return (
        "but the admin is not installed, or its URLs are not included",
        'Add "django.contrib.admin" to INSTALLED_APPS and admin.site.urls to the URLs, or use '
        f"{AUTO!r}, {STANDALONE!r} or the name of a template of the site.",
    )


def _problem_of_template(name: str) -> tuple[str, str] | None:
    """Why the pages can't fill a template of the site, and what to do; None if they can."""
    try:
        # the engine that renders the pages: another one has other templates
        engine: Engine = get_template(SITE_TEMPLATE).template.engine  # type: ignore[attr-defined]
    except Exception as error:
        return (
            f"but the templates of this app can't be loaded ({type(error).__name__}: {error})",
            'Set "APP_DIRS": True in TEMPLATES for django.template.backends.django.DjangoTemplates, or add '
            "django.template.loaders.app_directories.Loader to its loaders.",
        )
    try:
        chain, extended = _chain(engine.get_template(name))
    except Exception as error:
        return (
            f"but this template can't be loaded ({type(error).__name__}: {error})",
            f"Use {AUTO!r}, {ADMIN!r}, {STANDALONE!r}, or the name of a template as in {{% extends %}}, such "
            'as "base.html".',
        )
    if extended in EXTENDED_BY_PAGES or any(one.name == SITE_TEMPLATE for one in chain):
        return (
            "but this template is part of the pages, which would contain themselves without end",
            'Use the name of a template of the site, such as "base.html".',
        )
    # Only a request says what the template in a variable contains.
    return _problem_of_blocks(chain) if extended is None else None


def _chain(template: Template) -> tuple[list[Template], str | None]:
    """A template, the one that it extends, and so on. If the last one extends a template that only a request
    determines, also the expression with this template."""
    # A template can extend another one of the same name: that of the next folder.
    chain = [template]
    while True:
        extends = [node for node in chain[-1].nodelist if isinstance(node, ExtendsNode)]
        if not extends:
            return chain, None
        parent: Any = extends[0].parent_name
        if isinstance(parent.var, Variable) or parent.filters:
            return chain, str(parent.var)
        found, _ = template.engine.find_template(parent.var, skip=[one.origin for one in chain])
        chain.append(found)


def _problem_of_blocks(chain: list[Template]) -> tuple[str, str] | None:
    """Why the pages aren't shown in the last template of a chain, and what to do; None if they are."""
    versions: dict[str, list[BlockNode]] = defaultdict(list)
    for template in chain:
        for node in template.nodelist.get_nodes_by_type(BlockNode):
            if isinstance(node, BlockNode):
                versions[node.name].append(node)
    if any(_shows_content(node, versions) for node in chain[-1].nodelist):
        return None
    if "content" not in versions:
        return (
            "but this template has no block `content`, which the pages fill",
            "Write {% block content %}{% endblock %} where the pages are to be shown: in this template, or "
            "in another one that extends it.",
        )
    return (
        "but the block `content` of this template, which the pages fill, is never shown",
        "Write {% block content %}{% endblock %} into a block of the template that is extended, and "
        "{{ block.super }} into the blocks that override this one.",
    )


def _shows_content(
    node: Node, versions: Mapping[str, list[BlockNode]], outer: BlockNode | None = None
) -> bool:
    """Whether a node of a template, inside the block `outer`, shows the block `content`.

    `versions` are those of each block, the most derived one first, which Django shows in place of the others;
    {{ block.super }} shows the next one.
    """
    if isinstance(node, BlockNode):
        if node.name == "content":
            return True
        node, *others = versions.get(node.name) or [node]
        versions, outer = {**versions, node.name: others}, node
    children = [child for name in node.child_nodelists for child in getattr(node, name, None) or ()]
    if outer and versions[outer.name] and node.token and "block.super" in node.token.contents:
        children.append(outer)
    return any(_shows_content(child, versions, outer) for child in children)
