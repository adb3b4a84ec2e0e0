"""The page of the market."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import Any

from django.contrib import messages
from django.contrib.auth.mixins import LoginRequiredMixin
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.generic import TemplateView, View

from django_redis_messaging.web import identity

from . import trading
from .errors import InvalidPrice, InvalidSelection, TradeError
from .models import Item, Sale, Wallet

#: items for sale, and items of the user, on the page
ITEMS_PER_PAGE = 100
#: sales on the page
SALES_PER_PAGE = 10
#: an item and the price that the buyer has seen, as "17:30"
OFFER = re.compile(r"(\d{1,18}):(\d{1,9})", re.ASCII)


def member_of(request: HttpRequest) -> str:
    """The member id of the user."""
    return identity.current().member_id(request.user)


class MarketView(LoginRequiredMixin, TemplateView):
    """Items for sale, the items and the funds of the user, and the latest sales."""

    template_name = "market/market.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        member = member_of(self.request)
        offers = Item.objects.filter(state=Item.State.FOR_SALE).exclude(owner=member)[:ITEMS_PER_PAGE]
        own = Item.objects.filter(owner=member)[:ITEMS_PER_PAGE]
        sales = Sale.objects.select_related("item")[:SALES_PER_PAGE]
        ids = {item.owner for item in offers} | {id_ for sale in sales for id_ in (sale.buyer, sale.seller)}
        labels = identity.current().labels(ids)
        wallet = Wallet.objects.filter(member=member).first()
        return super().get_context_data(
            funds=wallet.funds if wallet else 0,
            offers=[(item, labels[item.owner]) for item in offers],
            own=own,
            sales=[(sale, labels[sale.buyer], labels[sale.seller]) for sale in sales],
            max_price=trading.MAX_PRICE,
            **kwargs,
        )


class TradeView(LoginRequiredMixin, View, ABC):
    """Trades, then redirects to the page, which shows the result as a message."""

    http_method_names = ["post"]  # noqa: RUF012  (as in Django's own views)

    def handle_no_permission(self) -> HttpResponseRedirect:
        """After signing in, continue on the page: this URL can't be opened."""
        return redirect_to_login(reverse("market"))

    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        """Trade."""
        try:
            messages.success(request, self.trade(member_of(request)))
        except TradeError as error:
            messages.error(request, str(error))
        return redirect("market")

    @abstractmethod
    def trade(self, member: str) -> str:
        """Trade; returns the message."""


class BuyView(TradeView):
    """Buys the selected items."""

    def trade(self, member: str) -> str:
        """Buy all of them or none."""
        found = [OFFER.fullmatch(offer) for offer in self.request.POST.getlist("offer")]
        prices = {int(match[1]): int(match[2]) for match in found if match}
        if not all(found):
            raise InvalidSelection
        items = trading.buy(member, prices, prices=prices)
        return _("Bought: %(items)s.") % {"items": ", ".join(item.name for item in items)}


class SellView(TradeView):
    """Offers an item of the user for sale."""

    def trade(self, member: str) -> str:
        """Offer it at the price in the form."""
        price = self.request.POST.get("price", "")
        if not re.fullmatch(r"\d{1,9}", price, re.ASCII):
            raise InvalidPrice
        trading.sell(member, self.kwargs["pk"], int(price))
        return _("Your item is for sale now.")


class WithdrawView(TradeView):
    """Stops selling an item of the user."""

    def trade(self, member: str) -> str:
        """Stop selling it."""
        trading.withdraw(member, self.kwargs["pk"])
        return _("Your item is not for sale any more.")
