"""What all views share: who may use them, answers to requests that fail, and parameters."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse, QueryDict
from django.shortcuts import redirect
from django.template import Context
from django.urls import reverse
from django.utils.cache import add_never_cache_headers, get_conditional_response, patch_vary_headers
from django.utils.decorators import method_decorator
from django.utils.functional import Promise, cached_property
from django.utils.translation import gettext_lazy as _
from django.views import View
from django.views.decorators.debug import sensitive_post_parameters, sensitive_variables

from .. import conf
from ..core.outcome import deadline
from ..errors import InvalidArgument, MessagingError
from ..services.chats import Changes, Chat, Message
from ..services.chats.inbox import Inbox
from ..services.common.arguments import parse_cursor
from ..services.live.stream import END
from ..services.rates.user_rates import COUNTED_BY_PAGES, UserRate
from . import identity as identities
from . import problems
from .identity import Identity
from .layout import page_in_layout
from .people import People
from .problems import Answer, Problem
from .rendering import Reader

#: the text for a cursor or id that the services refuse
INVALID_POSITION = _("This is not a valid position in the chat.")
#: digits of the longest id that is accepted
MAX_ID_DIGITS = 15
#: characters of a text that a form shows again after it was refused
MAX_SHOWN_AGAIN = 128 * 1024
#: characters of a search for people
MAX_SEARCH_LENGTH = 200


# The views check access themselves: LoginRequiredMiddleware would answer JSON requests with a redirect.
@method_decorator(login_not_required, name="dispatch")
class MessagingView(View):
    """A view for users whom the identity allows. `me` is the member id of the user."""

    #: identity of this view; None: the one in the settings
    identity: Identity | None = None
    #: the services; a subclass may replace them by its own
    service: type[Chat] = Chat
    inbox: type[Inbox] = Inbox
    #: whether all answers are JSON, whatever the request accepts
    json_only = False
    #: the text for an argument that the services refuse
    invalid_message: str | Promise = problems.INVALID.message

    #: the member id of the user; empty until the user is known to be allowed to use the pages
    me: str = ""
    active_identity: Identity

    def setup(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        super().setup(request, *args, **kwargs)
        self.active_identity = self.identity or identities.current()

    # What users write must not get into error mail, with the parameters of the request or with the local
    # variables of a traceback: these hold for all functions that are called from here.
    @method_decorator(sensitive_post_parameters())
    @method_decorator(sensitive_variables())
    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            with deadline(conf.current().WEB_DEADLINE):
                self.check_access(request)
                check_text(request)
                response = super().dispatch(request, *args, **kwargs)
        except (Problem, MessagingError) as error:
            response = self.answer_failure(error)
        return self.finish(response)

    def answer_failure(self, error: Problem | MessagingError) -> HttpResponse:
        """The answer to a request that failed; raises the error if it has none."""
        answer = error.answer if isinstance(error, Problem) else self.answer_to(error)
        if answer is None:
            raise error
        return self.refuse(answer)

    def check_access(self, request: HttpRequest) -> None:
        """Set the member id of the user. Raises the Problem for users who may not use the pages."""
        if not request.user.is_authenticated:
            raise Problem(problems.SIGN_IN)
        if not self.active_identity.may_use(request.user):
            raise Problem(problems.NOT_PERMITTED)
        self.me = self.active_identity.member_id(request.user)
        # What one user has written and not sent must not be sent in the name of the next one.
        if unquote(request.headers.get("Messaging-User", self.me)) != self.me:
            raise Problem(problems.OTHER_USER)

    @cached_property
    def people(self) -> People:
        """The people in the answer."""
        return People(self.active_identity)

    @cached_property
    def reader(self) -> Reader:
        """The user, as the one for whom JSON is made; with `html`, messages and rows have HTML."""
        return Reader(me=self.me, request=self.request, html=bool(self.request.GET.get("html")))

    def count_use(self, action: str, times: int = 1) -> None:
        """Count what the user does, up to its rate, unless the service does (`Chat._count_use`). Raises
        RateExceeded."""
        if self.counts(action):
            UserRate.of(self.me, action).require(times)

    def counts(self, action: str) -> bool:
        """Whether the pages count this action, and not the service."""
        return action in COUNTED_BY_PAGES or not conf.current().RATES_IN_SERVICES

    def answer_to(self, error: MessagingError) -> Answer | None:
        """The answer to an error of the services, or None if the error must be raised."""
        answer = problems.answer_to(error)
        if answer is not None and answer is problems.INVALID:
            return dataclasses.replace(answer, message=self.invalid_message)
        return answer

    def refuse(self, answer: Answer) -> HttpResponse:
        """Answer with the problem as JSON or as a page, with the same status."""
        if self.wants_json:
            error = {"code": answer.code, "message": str(answer.message)}
            response: HttpResponse = JsonResponse({"error": error}, status=answer.status)
        elif answer is problems.SIGN_IN:
            return redirect_to_login(self.next_url())
        else:
            # Input that isn't text can't be shown again.
            show = MessagingView.problem_page if answer is problems.NOT_TEXT else type(self).problem_page
            response = show(self, answer)
        if answer.retry_after is not None:
            response["Retry-After"] = str(answer.retry_after)
        return response

    def problem_page(self, problem: Answer, **context: Any) -> HttpResponse:
        """The page that shows the problem."""
        name = "django_redis_messaging/problem.html"
        return self.in_layout(name, {"problem": problem, **context}, status=problem.status)

    def in_layout(self, template_name: str, context: dict[str, Any], *, status: int = 200) -> HttpResponse:
        """The template with `context`, inside the layout."""
        return page_in_layout(self.request, self.layout, template_name, context, status=status)

    @property
    def layout(self) -> str:
        """The layout of the pages of this view, as in the settings."""
        return conf.current().LAYOUT

    def next_url(self) -> str:
        """The page to show after signing in: only a GET can be repeated."""
        return self.request.get_full_path() if self.request.method == "GET" else self.url("chats")

    def finish(self, response: HttpResponseBase) -> HttpResponseBase:
        """Keep private messages out of caches, and their URLs out of referrers sent to other sites."""
        add_never_cache_headers(response)
        patch_vary_headers(response, ["Accept", "Cookie", "Messaging-Without"])
        response.headers.setdefault("Referrer-Policy", "same-origin")
        return response

    @property
    def wants_json(self) -> bool:
        return self.json_only or self.request.headers.get("Accept", "").startswith("application/json")

    def url(self, name: str, *args: Any) -> str:
        """The URL of another of these views, in the namespace through which this one was reached."""
        match = self.request.resolver_match
        return reverse(f"messaging:{name}", args=args, current_app=match.namespace if match else None)

    def done(self, data: dict[str, Any], name: str, *args: Any) -> HttpResponse:
        """Answer a successful change: with `data` as JSON, or with a redirect to the page `name`."""
        if self.wants_json:
            return JsonResponse(data)
        return redirect(self.url(name, *args))


class MessagingPage(MessagingView):
    """A view that shows a page."""

    template_name: str
    #: the navigation tab that the page belongs to
    tab = "chats"

    def page(self, context: dict[str, Any], *, status: int = 200) -> HttpResponse:
        """The template of the view with `context`, inside the layout."""
        everything = {
            "drm_tab": self.tab,
            "drm_me": self.me,
            "drm_name": self.active_identity.label(self.request.user),
            "drm_sign_in": redirect_to_login(self.next_url()).url,
            **context,
        }
        return self.in_layout(self.template_name, everything, status=status)


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


class ChatMixin(MessagingView):
    """A view of one chat, for its members: the one whose id is in the URL."""

    #: Whether membership is checked before anything else of the request, so that the answers to others, and
    #: the number of round trips, are the same whether the chat exists or not. A view that sets it to False
    #: must check membership itself before it refuses anything.
    checks_membership_first = True

    def check_access(self, request: HttpRequest) -> None:
        super().check_access(request)
        if self.checks_membership_first:
            self.chat.role(self.me)

    @contextmanager
    def admitted(self, action: str) -> Iterator[None]:
        """Check the request in this block, then `admit`. To others than members, the answer is the same if
        the block raises a Problem."""
        try:
            yield
        except Problem:
            self.chat._admit(self.me)
            raise
        self.admit(action)

    def admit(self, action: str) -> None:
        """Check membership and count what the user does, in one round trip: for a view that doesn't check
        membership first. Raises NotAMember, RateExceeded."""
        self.chat._admit(self.me, action if self.counts(action) else "")

    @property
    def chat(self) -> Chat:
        try:
            return self.service(self.kwargs["chat_id"])
        except InvalidArgument:
            # No chat can have this id.
            raise Problem(problems.NOT_FOUND) from None

    def state(self) -> Changes:
        """The chat without messages, in one round trip. Raises for users who are not members."""
        return self.chat.changes(self.me, after=END)

    def quoted(self, messages: Sequence[Message]) -> list[Message]:
        """The messages that these reply to."""
        return read_quoted(self.chat, self.me, messages)


def read_quoted(chat: Chat, me: str, messages: Sequence[Message]) -> list[Message]:
    """The messages that these reply to, that are not among them, and that the member `me` can see."""
    known = {message.id for message in messages}
    ids = {message.reply_to for message in messages if message.reply_to and message.reply_to not in known}
    return chat.get_messages(me, sorted(ids)) if ids else []


_PLAIN = re.compile(r"[A-Za-z0-9_-]+")


class ChatIdConverter:
    """Writes an id of letters, digits, "-" and "_" as it is, and any other id as "~" and base64.

    "a/b", ".." or a line break would be changed on the way: browsers and servers normalize paths.
    """

    regex = r"~?[A-Za-z0-9_-]+"

    def to_python(self, value: str) -> str:
        if not value.startswith("~"):
            return value
        try:
            padded = value[1:] + "=" * (-len(value[1:]) % 4)
            return base64.b64decode(padded, altchars=b"-_", validate=True).decode()
        except (binascii.Error, UnicodeDecodeError) as error:
            raise ValueError("not a chat id") from error

    def to_url(self, value: str) -> str:
        if _PLAIN.fullmatch(value):
            return value
        return "~" + base64.urlsafe_b64encode(value.encode()).decode().rstrip("=")


def check_text(request: HttpRequest) -> None:
    """Raise the Problem if a parameter can't be stored or shown: some charsets have surrogates."""
    for query in (request.GET, request.POST):
        for key, values in query.lists():
            try:
                "".join([key, *map(str, values)]).encode()
            except UnicodeEncodeError:
                raise Problem(problems.NOT_TEXT) from None


def shown_again(given: QueryDict) -> QueryDict:
    """The input for a form that shows it again, without very long texts: as HTML, they may take six times
    their size."""
    shown = given.copy()
    for key, values in given.lists():
        shown.setlist(key, [value for value in values if len(value) <= MAX_SHOWN_AGAIN])
    return shown


def get_search(query: QueryDict) -> str:
    """The text to search people for. Raises the Problem if it is too long."""
    text = query.get("q", "").replace("\0", "")
    if len(text) > MAX_SEARCH_LENGTH:
        raise problems.invalid(_("Search for a shorter name."))
    return text


def get_position(query: QueryDict, name: str) -> str | int | None:
    """The cursor or message id in the parameter `name`, or None if it is missing or empty."""
    value = query.get(name, "")
    return parse_position(value) if value else None


def get_checked_position(query: QueryDict, name: str) -> str | int | None:
    """The same, checked before anything is sent to Redis."""
    value = get_position(query, name)
    if value is not None:
        parse_cursor(value, name)
    return value


def get_number(query: QueryDict, name: str) -> int | None:
    """The number in the parameter `name`, or None if it is missing or empty."""
    value = query.get(name, "")
    if value and not is_number(value):
        raise problems.invalid(INVALID_POSITION)
    return int(value) if value else None


def parse_position(value: str) -> str | int:
    """An id as a number; anything else as it is: the services check cursors."""
    return parse_id(value) if value.isascii() and value.isdigit() else value


def parse_id(value: str) -> int:
    """A message id. Raises the Problem for anything else."""
    if not is_number(value):
        raise problems.invalid(_("This is not a valid message ID."))
    return int(value)


def is_number(value: str) -> bool:
    """Whether a text can be an id."""
    return value.isascii() and value.isdigit() and len(value) <= MAX_ID_DIGITS


def conditional_json(request: HttpRequest, data: dict[str, Any]) -> HttpResponse:
    """`data` as JSON with an ETag, or 304 without a body if the request's If-None-Match has this ETag."""
    response = JsonResponse(data, json_dumps_params={"ensure_ascii": False})
    response["ETag"] = f'"{hashlib.blake2b(response.content, digest_size=12).hexdigest()}"'
    answer = get_conditional_response(request, etag=response["ETag"], response=response)
    return answer if answer is not None else response
