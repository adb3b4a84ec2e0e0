"""A page that shows the options of the process that serves it, and a form to change them."""

from __future__ import annotations

import os
from datetime import datetime
from typing import Any

from django import forms
from django.contrib.auth.mixins import LoginRequiredMixin
from django.core.cache import cache
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.urls import reverse_lazy
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy
from django.views.generic import FormView

from . import caching, options

#: cache key of a value that is expensive to compute
PRICES = "prices"


class OptionsForm(forms.Form):
    """The form for all options."""

    discount = forms.IntegerField(label=_("Discount (%)"), min_value=0, max_value=100)
    open = forms.BooleanField(label=pgettext_lazy("shop", "Open"), required=False)


class ShopView(LoginRequiredMixin, FormView):  # type: ignore[type-arg]
    """Shows the options of this process. A POST of staff changes them in all processes, and deletes cached
    prices."""

    form_class = OptionsForm
    template_name = "shop/shop.html"
    success_url = reverse_lazy("shop")

    def get_initial(self) -> dict[str, Any]:
        return {name: options.get(name) for name in options.DEFAULTS}

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Change the options."""
        if not request.user.is_staff:
            raise PermissionDenied
        return super().post(request, *args, **kwargs)

    def form_valid(self, form: forms.Form) -> HttpResponse:
        """Change the options that differ."""
        for name, value in form.cleaned_data.items():
            if value != options.get(name):
                options.change(name, value)
        caching.invalidate(PRICES)
        return super().form_valid(form)

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        made: datetime | None = cache.get_or_set(PRICES, timezone.now, None)
        return super().get_context_data(process=os.getpid(), options=self.get_initial(), made=made, **kwargs)
