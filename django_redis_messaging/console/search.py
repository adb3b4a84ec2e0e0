"""The search of the console: leads from a name or an id to the page of what has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from .. import surveys
from ..core.encoding import printable
from ..core.operations import perform
from ..errors import InvalidArgument
from ..services.common.catalogue import Catalogue
from ..services.common.things import Thing
from ..web import identity as identities
from .base import ConsolePage
from .tables import Cell, Row, Table
from .words import kind_of

#: characters of a text that is searched for
MAX_LENGTH = 300
#: users that are listed
MAX_USERS = 20


class SearchPage(ConsolePage):
    """What has the name or id `?q=`: the user, chat, task, lock, queue and all else. If only one thing has
    it, the answer leads to its page."""

    section = "overview"
    refresh = 0

    def get(self, request: HttpRequest) -> HttpResponse:
        text = request.GET.get("q", "").strip()[:MAX_LENGTH]
        found = [(thing, label) for thing, label in self.find(text) if self.url_of(thing)] if text else []
        if len(found) == 1:
            return redirect(self.url_of(found[0][0]))
        table = Table(
            _("Found"),
            [_("Name"), _("Kind")],
            found,
            self.row,
            _("Nothing has this name or id.") if text else _("Enter a name or an id."),
        )
        return self.page({"page_title": _("Search"), "tables": [table], "drm_query": text})

    def row(self, item: tuple[Thing, str]) -> Row:
        thing, label = item
        return Row([Cell(printable(label), url=self.url_of(thing)), kind_of(thing)])

    def find(self, text: str) -> Iterator[tuple[Thing, str]]:
        """What the text may mean, each with a label."""
        try:
            exact = Thing.parse(text)
        except InvalidArgument:
            pass
        else:
            yield exact, exact.name
        try:
            yield from ((thing, thing.name) for thing in Catalogue().find(text))
        except InvalidArgument:  # no name can be so
            return
        yield from self.tasks(text)
        yield from self.users(text)

    def tasks(self, text: str) -> Iterator[tuple[Thing, str]]:
        """The queues of tasks with this name, and the task with this id."""
        backends = surveys.backends()
        for alias, backend in backends.items():
            if text in backend.serving():
                yield Thing("queue", text, alias), text
            if (found := perform(backend.using, backend.engine.get_part(text, 1))) is not None:
                yield Thing("task", found[0].id, alias), found[0].id

    def users(self, text: str) -> Iterator[tuple[Thing, str]]:
        """The mailboxes of the users whose user names contain the text, or whose primary key it is."""
        model: Any = get_user_model()
        identity = identities.current()
        users = model._default_manager.filter(**{f"{model.USERNAME_FIELD}__icontains": text})[:MAX_USERS]
        found = {identity.member_id(user): identity.label(user) for user in users}
        try:
            key = model._meta.pk.clean(text, None)
            found |= {
                identity.member_id(user): identity.label(user)
                for user in model._default_manager.filter(pk=key)
            }
        except (ValidationError, ValueError, TypeError):
            pass
        for member, label in found.items():
            yield Thing("mailbox", member), label
