"""Sign-in with one click; only if DEBUG is set, and for staff only if STAFF_SIGN_IN_BY_CLICK is set, too."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model, login
from django.contrib.auth.views import redirect_to_login
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, resolve_url
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.generic import TemplateView

from .fixtures import USERS

BACKEND = "django.contrib.auth.backends.ModelBackend"


class SignInView(TemplateView):
    """Shows the demo users; a POST signs in as one of them."""

    template_name = "people/sign_in.html"

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if not settings.DEBUG:
            raise Http404("Signing in without a password is for the demo only: set DEBUG.")
        return super().dispatch(request, *args, **kwargs)  # type: ignore[return-value]

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        people = get_user_model()._default_manager.filter(username__in=[user.username for user in USERS])
        return super().get_context_data(people=people.order_by("pk"), next=self._next(), **kwargs)

    def post(self, request: HttpRequest) -> HttpResponse:
        """Sign in as the selected user; staff may have to give a password."""
        names = {user.username for user in USERS} & {request.POST.get("username", "")}
        user = get_object_or_404(get_user_model(), username__in=names)
        if (user.is_staff or user.is_superuser) and not settings.STAFF_SIGN_IN_BY_CLICK:
            return redirect_to_login(self._next() or reverse("admin:index"), reverse("admin:login"))
        login(request, user, backend=BACKEND)
        return HttpResponseRedirect(self._next() or resolve_url(settings.LOGIN_REDIRECT_URL))

    def _next(self) -> str:
        """The page to show after signing in, if it is on this site and isn't this page."""
        wanted = self.request.POST.get("next") or self.request.GET.get("next") or ""
        host = self.request.get_host()
        safe = url_has_allowed_host_and_scheme(wanted, {host}, require_https=self.request.is_secure())
        return wanted if safe and wanted != reverse("sign-in") else ""
