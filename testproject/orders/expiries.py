"""Timers that cancel orders that are not paid in time."""

from __future__ import annotations

from django.conf import settings
from django.urls import reverse

from django_redis_messaging import Expired, Expiry, notify, on_expiry

from .models import Order

payments = Expiry("order")


def start_payment_timer(order: Order, member: str) -> None:
    """Start the time to pay. `member` is the customer's member id, or empty."""
    payments.start(str(order.pk), settings.TIME_TO_PAY, {"item": order.item, "member": member})


@on_expiry("order")
def cancel_unpaid(expired: Expired) -> None:
    """Cancel an unpaid order and notify the customer. Idempotent: a handler may run more than once."""
    order, payload = Order(pk=int(expired.name)), expired.payload
    order.settle(Order.State.CANCELLED)
    if payload["member"] and order.has_state(Order.State.CANCELLED):
        text = f"Your order was cancelled because it was not paid in time: {payload['item']}."
        notify(payload["member"], text, url=reverse("orders"), level="warning", request_id=expired.id)
