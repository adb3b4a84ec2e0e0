"""What pages of things without a registry share: lists, one at a time, in pages; and pages of one thing."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

from django.http import HttpRequest, HttpResponse
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import conf
from ..core.encoding import current_prefix, printable
from ..services.common.pages import Page
from ..web import identity as identities
from ..web import problems
from ..web.problems import Answer, Problem
from . import SECTIONS
from .base import ConsolePage, ThingPage
from .tables import Action, Cell, Row, Table

#: what is said of a thing that does not exist (any more)
NOT_FOUND = Answer(404, "not_found", gettext_lazy("This doesn't exist any more."))
#: what a function of services/common/pages.py needs: alias, prefix, text in the name, cursor
Read = Callable[[str, str, str, str], Page[Any]]
#: a token of this app, see services/common/leases.py: in a task, it ends with that
_TOKEN = re.compile(r"(.{1,40}?):(\d{1,10}):[0-9a-f]{16}(?::task:\S+)?")


class ListPage(ConsolePage):
    """Lists, of which `?kind=` chooses one; `?name=` filters by a text in the name, `?cursor=` pages."""

    template_name = "django_redis_messaging/console/listing.html"
    #: each kind and its title
    titles: ClassVar[Mapping[str, str | Promise]]
    #: the labels of the users on the page, by id
    labels: Mapping[str, str] = MappingProxyType({})

    @property
    def kind(self) -> str:
        """The list that is shown; raises the Problem for another one."""
        kind = self.request.GET.get("kind") or next(iter(self.titles))
        if kind not in self.titles:
            raise Problem(problems.INVALID)
        return kind

    @property
    def text(self) -> str:
        """The text that the names contain."""
        return self.request.GET.get("name", "").strip()

    def get(self, request: HttpRequest) -> HttpResponse:
        table: Table = getattr(self, self.kind)()
        return self.page(
            {
                "page_title": _section_title(self),
                "tables": [table],
                "tabs": [
                    (title, self.url(self.section, kind=kind), kind == self.kind)
                    for kind, title in self.titles.items()
                ],
                "kind": self.kind,
                "filters": {"name": self.text} if self.text else {},
            }
        )

    def list_of(
        self,
        read: Read,
        columns: Sequence[str],
        row: Callable[[Any], Row],
        empty: str,
        note: str = "",
        user: Callable[[Any], str] | None = None,
    ) -> Table:
        """The table of a page, sorted by name. `user`: the id of the user in a row, for `labels`."""
        cursor = self.request.GET.get("cursor", "")
        page = read(conf.alias(), current_prefix(), self.text, cursor)
        if user is not None:
            self.labels = identities.current().labels(filter(None, map(user, page.items)))
        following = page.cursor and self.url(self.section, kind=self.kind, name=self.text, cursor=page.cursor)
        return Table(
            str(self.titles[self.kind]),
            columns,
            sorted(page.items, key=lambda one: str(one.name)),
            row,
            _("Nothing on this page of the search.") if following or cursor else empty,
            next_url=following,
            note=note,
        )


class FactsPage(ThingPage):
    """The page of one thing: what is known of it, and tables."""

    template_name = "django_redis_messaging/console/facts.html"

    def described(
        self,
        facts: Sequence[tuple[str, Cell]],
        tables: Sequence[Table] = (),
        *,
        actions: Sequence[Action] = (),
        **context: Any,
    ) -> HttpResponse:
        """The page."""
        crumbs = [(_section_title(self), self.url(self.section))]
        name = printable(self.thing.name)
        known = {"facts": facts, "tables": tables, "actions": actions, "crumbs": crumbs}
        return self.page({"page_title": name, **known, **context})


def _section_title(page: ConsolePage) -> str:
    return str(next(section.title for section in SECTIONS if section.name == page.section))


def user_cell(user: str, labels: Mapping[str, str], detail: str = "") -> Cell:
    """A user: the label, and below it the id and the detail, not joined by a comma as a decimal would be."""
    label = labels.get(user, user)
    details = ("" if label == user else user, detail)
    return Cell(printable(label), printable(": ".join(filter(None, details))))


def client(token: str | None) -> Cell | None:
    """The client that a token names: with its host and process, if it is one of this app."""
    if token is None:
        return None
    match = _TOKEN.fullmatch(token)
    detail = _("process %(process)s on %(host)s") % {"process": match[2], "host": match[1]} if match else ""
    return Cell(printable(token), printable(detail))
