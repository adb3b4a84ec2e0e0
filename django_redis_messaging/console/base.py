"""What all pages of the console share: who may see them, the frame, refusals, and changes that are confirmed
first and recorded."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.urls import NoReverseMatch, reverse
from django.utils.cache import add_never_cache_headers, patch_vary_headers
from django.utils.decorators import method_decorator
from django.utils.functional import Promise, cached_property
from django.utils.http import url_has_allowed_host_and_scheme, urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views import View
from django.views.decorators.csrf import csrf_protect
from django.views.decorators.debug import sensitive_post_parameters, sensitive_variables

from .. import conf
from ..core.encoding import printable
from ..core.outcome import deadline
from ..errors import InvalidArgument, MessagingError, OutcomeUnknown, RateExceeded, Unavailable
from ..services.audit import AuditTrail
from ..services.common.things import Thing
from ..services.rates.user_rates import UserRate
from ..web import identity as identities
from ..web import problems
from ..web.base import check_text
from ..web.layout import ADMIN, page_in_layout
from ..web.problems import Answer, Problem
from . import SECTIONS, access
from .tables import Action, Cell

if TYPE_CHECKING:
    from django.contrib.admin import AdminSite

logger = logging.getLogger(__name__)

#: things that one change may be about, if they are selected one by one
MAX_SELECTED = 200
#: the layout of the part of a page that is fetched again and again
FRAGMENT_TEMPLATE = "django_redis_messaging/console/fragment.html"
#: an id that a page gives to a change
_REQUEST = re.compile(r"[0-9a-f]{32}")
NOTHING_SELECTED = Answer(400, "nothing_selected", gettext_lazy("Nothing was selected."))


# The views check access themselves: LoginRequiredMiddleware knows nothing of the hook CONSOLE.
@method_decorator(login_not_required, name="dispatch")
class ConsolePage(View):
    """A page of the console, reached through an admin site or through console.urls."""

    #: the section to which the page belongs, see console/__init__.py
    section = "overview"
    template_name = "django_redis_messaging/console/tables.html"
    #: the admin site through which the page is reached; None: console.urls
    admin_site: AdminSite | None = None
    #: seconds after which an open page fetches its contents again; 0: never
    refresh = 10

    # What users have written must not get into error mail, with the parameters of the request or with the
    # local variables of a traceback.
    @method_decorator(csrf_protect)  # also on a site without the middleware
    @method_decorator(sensitive_post_parameters())
    @method_decorator(sensitive_variables())
    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            with deadline(conf.current().WEB_DEADLINE):
                self.check_access()
                check_text(request)
                response = super().dispatch(request, *args, **kwargs)
        except (Problem, MessagingError) as error:
            response = self.refuse(error.answer if isinstance(error, Problem) else answer_to(error))
        add_never_cache_headers(response)
        patch_vary_headers(response, ["Cookie", "Messaging-Fragment"])
        response.headers.setdefault("Referrer-Policy", "same-origin")
        return response

    def check_access(self) -> None:
        """Raise the Problem for users who may not see the console."""
        if not self.request.user.is_authenticated:
            raise Problem(problems.SIGN_IN)
        if not self.console.may_view(self.request.user):
            raise Problem(problems.NOT_PERMITTED)

    @property
    def console(self) -> access.Console:
        """What users may do."""
        return access.current()

    def may_act(self, action: str, thing: Thing) -> bool:
        """Whether the user may do this."""
        return self.console.may_act(self.request.user, action, thing)

    def may_read(self, thing: Thing) -> bool:
        """Whether the user may read what the thing contains."""
        return self.console.may_read(self.request.user, thing)

    @property
    def number(self) -> int:
        """The number of the page of a list, from `?page=`. Raises the Problem."""
        text = self.request.GET.get("page", "1")
        if not (text.isascii() and text.isdigit() and len(text) <= 6 and int(text)):
            raise Problem(problems.INVALID)
        return int(text)

    def url(self, name: str, /, *args: Any, **query: str) -> str:
        """The URL of a page of the console, `messaging_NAME`, below the site through which this one was
        reached."""
        match = self.request.resolver_match
        namespace = f"{match.namespace}:" if match and match.namespace else ""
        given = {key: value for key, value in query.items() if value}
        return reverse(f"{namespace}messaging_{name}", args=args) + ("?" + urlencode(given) if given else "")

    def url_of(self, thing: Thing) -> str:
        """The URL of the page of a thing, whose name is that of its kind; empty if there is none."""
        try:
            return self.url(thing.kind, thing=str(thing))
        except NoReverseMatch:
            return ""

    def page(self, context: Mapping[str, Any], *, template_name: str = "", status: int = 200) -> HttpResponse:
        """The page with `context`, of which `page_title` is the title and `tables` are shown."""
        name = template_name or self.template_name
        site, layout = self.admin_site, ADMIN if self.admin_site is not None else conf.current().LAYOUT
        sections = [(one, self.url(one.name), one.name == self.section) for one in SECTIONS]
        everything = {
            "drm_sections": sections,
            "drm_search": self.url("search"),
            "drm_refresh": self.refresh,
            **context,
        }
        if "Messaging-Fragment" in self.request.headers:
            everything["drm_layout"] = FRAGMENT_TEMPLATE
        return page_in_layout(self.request, layout, name, everything, status=status, admin_site=site)

    def refuse(self, answer: Answer) -> HttpResponse:
        """The page that says why a request is not answered."""
        if answer is problems.SIGN_IN:
            return redirect_to_login(self.request.get_full_path())
        name = "django_redis_messaging/console/problem.html"
        context = {"page_title": _("Something went wrong"), "problem": answer, "drm_refresh": 0}
        # Other sections are not shown to users who may see none.
        if answer is problems.NOT_PERMITTED:
            context["drm_sections"] = []
        response = self.page(context, template_name=name, status=answer.status)
        if answer.retry_after is not None:
            response["Retry-After"] = str(answer.retry_after)
        return response

    def button(
        self, name: str, label: str, thing: Thing, *, is_danger: bool = False, **data: str
    ) -> list[Action]:
        """The button for the change `messaging_NAME` of a thing; none if the user may not make it."""
        if not self.may_act(name, thing):
            return []
        return [Action(label, self.url(name), thing, data, is_danger)]


def answer_to(error: MessagingError) -> Answer:
    """The answer to an error of the services; raises an error that is a defect of the site. Operators see
    what the services say."""
    text = printable(str(error))
    match error:
        case RateExceeded():
            return problems.answer_to(error) or problems.TOO_FAST
        case InvalidArgument():
            return Answer(400, "invalid", text)
        case OutcomeUnknown() | Unavailable():
            return Answer(503, "unavailable", text, problems.UNAVAILABLE_RETRY)
    known = problems.answer_to(error)
    if known is None:
        raise error
    return Answer(known.status, known.code, text, known.retry_after)


class ThingPage(ConsolePage):
    """The page of a thing: that of the parameter `thing`. The name of its URL is that of the kind."""

    #: the kinds of things that it shows
    kinds: tuple[str, ...] = ()

    @cached_property
    def thing(self) -> Thing:
        """What the page is about. Raises InvalidArgument, or the Problem if it is of another kind."""
        thing = Thing.parse(self.request.GET.get("thing", ""))
        if thing.kind not in self.kinds:
            raise Problem(problems.INVALID)
        return thing


@dataclass(frozen=True)
class Field:
    """What a user enters before a change."""

    #: of the parameter
    name: str
    label: str | Promise
    #: of the input: text, number, datetime-local
    type: str = "text"
    value: str = ""
    #: a line below the input
    hint: str | Promise = ""
    is_required: bool = False
    #: characters of a text
    max_length: int = 255


@dataclass(frozen=True)
class Question:
    """What is asked before a change."""

    title: str
    #: what the change does
    text: str | Promise
    #: the label of the button that makes it
    button: str
    #: what is known of the things
    facts: Sequence[tuple[str, Cell]] = ()
    is_danger: bool = False
    #: whether it also changes what is not listed, so that the number is not known before
    things: Sequence[Thing] = ()
    #: what is entered with the confirmation
    fields: Sequence[Field] = ()


class ChangePage(ConsolePage):
    """A change: a POST asks, and one with `confirmed` makes it. The things are in the parameters `thing`."""

    #: its name in may_act and in the audit trail, and without `messaging_` that of its URL
    action: str
    #: the words of its button
    label: str | Promise
    #: the kinds of things that it is about
    kinds: tuple[str, ...] = ()
    #: how many things it may be about
    limit = MAX_SELECTED
    #: things that `apply` has changed so far, where it may fail after some of them
    changed = 0
    template_name = "django_redis_messaging/console/confirm.html"
    refresh = 0

    def post(self, request: HttpRequest) -> HttpResponse:
        things = self.things()
        for thing in things:
            if not self.may_act(self.action, thing):
                raise Problem(problems.NOT_PERMITTED)
        if "confirmed" not in request.POST:
            return self.ask(self.question(things))
        UserRate.of(identities.current().member_id(request.user), "change").require(1)
        return self.change(things)

    def things(self) -> list[Thing]:
        """The things in the request. Raises the Problem if they are not of the kinds that can be changed."""
        texts = self.request.POST.getlist("thing")[: self.limit + 1]
        things = [Thing.parse(text) for text in texts]
        if not things:
            raise Problem(NOTHING_SELECTED)
        if len(things) > self.limit or any(thing.kind not in self.kinds for thing in things):
            raise Problem(problems.INVALID)
        return things

    @property
    def request_id(self) -> str:
        """What repeats of this change have in common, from the page that has asked; empty: nothing."""
        text = self.request.POST.get("request", "")
        return text if _REQUEST.fullmatch(text) else ""

    @property
    def asked(self) -> str | None:
        """The request id of this change, for services: the user's; None: a new one."""
        return f"{self.request.user.pk}:{self.request_id}" if self.request_id else None

    def question(self, things: Sequence[Thing]) -> Question:
        """What to ask. Raises the Problem if there is nothing to change."""
        raise NotImplementedError

    def apply(self, things: Sequence[Thing]) -> int:
        """Make the change; returns how many things were changed. Raises the Problem if that is no longer
        possible."""
        raise NotImplementedError

    def detail(self) -> str:
        """What the audit trail says besides."""
        return ""

    def said(self, number: int) -> str:
        """What is said after the change."""
        return _("Done.")

    def back(self) -> str:
        """The page that is shown after the change: that of the parameter `next`, else the section's."""
        target = self.request.POST.get("next", "")
        if url_has_allowed_host_and_scheme(
            target, {self.request.get_host()}, require_https=self.request.is_secure()
        ):
            return target
        return self.url(self.section)

    def ask(self, question: Question) -> HttpResponse:
        """The page that asks."""
        asked = {"csrfmiddlewaretoken", "confirmed", *(field.name for field in question.fields)}
        given = [
            (key, value) for key, values in self.request.POST.lists() if key not in asked for value in values
        ]
        if not self.request_id:
            given.append(("request", uuid4().hex))
        context = {"page_title": question.title, "question": question, "given": given, "back": self.back()}
        return self.page(context)

    def change(self, things: Sequence[Thing]) -> HttpResponse:
        """Make the change, record it, and show the page from which it was made."""
        try:
            number = self.apply(things)
        except (OutcomeUnknown, Unavailable) as error:
            # Of a change in several steps, the first ones may have been made.
            is_unknown = isinstance(error, OutcomeUnknown)
            reason = _("The outcome is not known.") if is_unknown else printable(str(error))
            self.record(things, self.changed, reason)
            raise
        self.record(things, number, self.detail())
        messages.success(self.request, self.said(number), fail_silently=True)
        return redirect(self.back())

    def record(self, things: Sequence[Thing], number: int, detail: str) -> None:
        """Add the change to the log and to the audit trail."""
        by, text = self.request.user.get_username(), " ".join(map(str, things))
        logger.warning(
            "User %r: %s, changed: %d (%.200s). %s", by, self.action, number, text, printable(detail)
        )
        # of the number, too: a repeat that changes nothing more is another entry
        request = f"{by} {self.action} {number} {self.request_id}" if self.request_id else None
        AuditTrail().record(by, self.action, text, number=number, detail=detail, request_id=request)
