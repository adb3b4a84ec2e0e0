"""What all views share: who may come in, and how a problem is answered."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.cache import add_never_cache_headers, patch_vary_headers
from django.utils.decorators import method_decorator
from django.views import View

from ..errors import MessagingError
from ..services.chats import Chat
from ..services.inboxes import Inbox
from . import identity as identities
from . import problems
from .frame import frame
from .identity import Identity
from .problems import Problem


# The views ask the identity themselves: a middleware that redirects would answer JSON with a page.
@method_decorator(login_not_required, name="dispatch")
class MessagingView(View):
    """A view for people whom the identity lets in. `me` is the member id of the one who asks."""

    #: who is who; None: the identity of the settings
    identity: Identity | None = None
    #: the services; a subclass may put its own in their place
    service: type[Chat] = Chat
    inbox: type[Inbox] = Inbox
    #: whether it answers JSON to whoever asks
    json_only = False

    me: str
    who: Identity

    def setup(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        super().setup(request, *args, **kwargs)
        self.who = self.identity or identities.current()

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            self.admit(request)
            response = super().dispatch(request, *args, **kwargs)
        except Problem as trouble:
            response = self.refuse(trouble)
        except MessagingError as error:
            known = problems.problem(error)
            if known is None:
                raise
            response = self.refuse(known)
        return self.finish(response)

    def admit(self, request: HttpRequest) -> None:
        """Let the user in and note the member id, or raise the Problem."""
        if not request.user.is_authenticated:
            raise problems.sign_in()
        if not self.who.may_use(request.user):
            raise problems.not_permitted()
        self.me = self.who.member_id(request.user)

    def refuse(self, trouble: Problem) -> HttpResponse:
        """Say what is wrong, as JSON or as a page, with the same status."""
        if self.wants_json:
            error = {"code": trouble.code, "message": trouble.message}
            response: HttpResponse = JsonResponse({"error": error}, status=trouble.status)
        elif trouble.code == "sign_in":
            return redirect_to_login(self.back_from_login())
        else:
            response = self.explain(trouble)
        if trouble.retry_after is not None:
            response["Retry-After"] = str(trouble.retry_after)
        return response

    def explain(self, trouble: Problem) -> HttpResponse:
        """The page that says what is wrong."""
        name = "django_redis_messaging/problem.html"
        context = {**frame(self.request), "trouble": trouble}
        return TemplateResponse(self.request, name, context, status=trouble.status)

    def back_from_login(self) -> str:
        """Where to go after signing in: only a page can be asked for again."""
        return self.request.get_full_path() if self.request.method == "GET" else self.url("chats")

    def finish(self, response: HttpResponseBase) -> HttpResponseBase:
        """What people write is nobody else's to keep: no cache, no referrer to the links in it."""
        add_never_cache_headers(response)
        patch_vary_headers(response, ["Accept", "Cookie"])
        response.headers.setdefault("Referrer-Policy", "same-origin")
        return response

    @property
    def wants_json(self) -> bool:
        return self.json_only or self.request.headers.get("Accept", "").startswith("application/json")

    def url(self, name: str, *args: Any) -> str:
        """The address of another of these views, in the namespace this one was found in."""
        match = self.request.resolver_match
        return reverse(f"messaging:{name}", args=args, current_app=match.namespace if match else None)

    def done(self, data: dict[str, Any], name: str, *args: Any) -> HttpResponse:
        """A change was made: say so in JSON, or show the page `name`."""
        if self.wants_json:
            return JsonResponse(data)
        return redirect(self.url(name, *args))


class MessagingPage(MessagingView):
    """A view that shows a page."""

    template_name: str
    #: which part of the navigation it belongs to
    tab = "chats"

    def page(self, context: dict[str, Any], *, status: int = 200) -> HttpResponse:
        """The template with `context`, in its frame."""
        everything = {**frame(self.request), "drm_tab": self.tab, **context}
        return TemplateResponse(self.request, self.template_name, everything, status=status)


class ChatMixin(MessagingView):
    """A view of one chat: the one of `chat_id` in the address."""

    @property
    def chat(self) -> Chat:
        try:
            return self.service(self.kwargs["chat_id"])
        except ValueError:
            # What can't be an id is no chat either.
            raise problems.not_found() from None
