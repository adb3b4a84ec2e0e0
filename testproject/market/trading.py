"""Buying and selling. Each function raises a TradeError, with nothing changed, if it can't do its work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial

from django.db import transaction
from django.urls import reverse

from django_redis_messaging import fenced_update, notify

from . import deliveries
from .errors import (
    AlreadySold,
    InvalidPrice,
    InvalidSelection,
    NotForSale,
    NotYours,
    OwnItem,
    PriceChanged,
    StaleLock,
    TooExpensive,
)
from .locks import hold_items
from .models import Item, Sale, Wallet

#: maximum number of items in one purchase
MAX_ITEMS = 20
#: coins
MAX_PRICE = 1_000_000


def buy(buyer: str, item_ids: Iterable[int], *, prices: Mapping[int, int] | None = None) -> list[Item]:
    """Buy all these items or none of them; returns them.

    `prices` are those that the buyer has seen, by item id. Another price is refused.
    """
    chosen = list(dict.fromkeys(item_ids))
    if not 1 <= len(chosen) <= MAX_ITEMS:
        raise InvalidSelection
    with hold_items(chosen) as fences, transaction.atomic():
        items = [_get_offer(pk, buyer, prices or {}) for pk in chosen]
        _move_money(buyer, items)
        for item in items:
            _change(item, fences[item.pk], owner=buyer, state=Item.State.SOLD)
            _record_sale(item, buyer)
    return items


def sell(owner: str, item_id: int, price: int) -> None:
    """Offer an item for this price, also one that was bought at the market, or that is for sale already."""
    if not 1 <= price <= MAX_PRICE:
        raise InvalidPrice
    with hold_items([item_id]) as fences, transaction.atomic():
        _change(_get_own(item_id, owner), fences[item_id], state=Item.State.FOR_SALE, price=price)


def withdraw(owner: str, item_id: int) -> None:
    """Stop selling an item."""
    with hold_items([item_id]) as fences, transaction.atomic():
        _change(_get_own(item_id, owner), fences[item_id], state=Item.State.WITHDRAWN)


def _get_offer(item_id: int, buyer: str, prices: Mapping[int, int]) -> Item:
    """The item, if this member can buy it at the price that the member has seen."""
    item = Item.objects.filter(pk=item_id).first()
    if item is None:
        raise NotForSale(f"#{item_id}")
    if item.owner == buyer:
        raise OwnItem(item.name)
    if item.state == Item.State.SOLD:
        raise AlreadySold(item.name)
    if item.state != Item.State.FOR_SALE:
        raise NotForSale(item.name)
    if prices.get(item_id, item.price) != item.price:
        raise PriceChanged(item.name)
    return item


def _get_own(item_id: int, owner: str) -> Item:
    item = Item.objects.filter(pk=item_id, owner=owner).first()
    if item is None:
        raise NotYours
    return item


def _move_money(buyer: str, items: list[Item]) -> None:
    amounts = Counter({buyer: -sum(item.price for item in items)})
    for item in items:
        amounts[item.owner] += item.price
    for member in sorted(amounts):  # always in this order: two transactions can't wait for each other
        if not Wallet.add(member, amounts[member]):
            raise TooExpensive(", ".join(item.name for item in items))


def _change(item: Item, fence: int, **values: object) -> None:
    """Write to the row of an item, unless it has changed since it was read, or a later holder has written."""
    unchanged = Item.objects.filter(pk=item.pk, owner=item.owner, state=item.state)
    if not fenced_update(unchanged, "fence", fence, **values):
        raise StaleLock(item.name)


def _record_sale(item: Item, buyer: str) -> None:
    """`item` is as it was before the purchase. After the commit, start the delivery and notify the seller."""
    sale = Sale.objects.create(item=item, seller=item.owner, buyer=buyer, price=item.price)
    transaction.on_commit(partial(deliveries.send, sale), robust=True)
    text = f"Sold at the market: {item.name}. Price: {item.price}."
    notify_seller = partial(
        notify, item.owner, text, url=reverse("market"), level="success", request_id=f"sale-{sale.pk}"
    )
    transaction.on_commit(notify_seller, robust=True)
