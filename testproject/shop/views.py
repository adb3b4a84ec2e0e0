"""One page: the options, as the process that serves it has heard of them, and a form that changes them."""

from __future__ import annotations

import os
from datetime import datetime
from typing import Any

from django import forms
from django.core.cache import cache
from django.http import HttpResponse
from django.urls import reverse_lazy
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.views.generic import FormView

from . import caching, options

#: the key of what is dear to make, and so is held in memory
PRICES = "prices"


class OptionsForm(forms.Form):
    """All options."""

    discount = forms.IntegerField(label=_("Discount (%)"), min_value=0, max_value=100)
    open = forms.BooleanField(label=_("Open"), required=False)


class ShopView(FormView):  # type: ignore[type-arg]
    """The options of this process; a POST changes those of all, and drops what was made by the old ones."""

    form_class = OptionsForm
    template_name = "shop/shop.html"
    success_url = reverse_lazy("shop")

    def get_initial(self) -> dict[str, Any]:
        return {name: options.get(name) for name in options.DEFAULTS}

    def form_valid(self, form: forms.Form) -> HttpResponse:
        """Change what differs."""
        for name, value in form.cleaned_data.items():
            if value != options.get(name):
                options.change(name, value)
        caching.drop(PRICES)
        return super().form_valid(form)

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        made: datetime | None = cache.get_or_set(PRICES, timezone.now, None)
        return super().get_context_data(process=os.getpid(), options=self.get_initial(), made=made, **kwargs)
