"""What happens when the time to pay is over."""

from __future__ import annotations

from django.conf import settings
from django.urls import reverse

from django_redis_messaging import Expired, Expiry, notify, on_expiry

from .models import Order

payments = Expiry("order")


def await_payment(order: Order, member: str) -> None:
    """Begin to count. `member` is who ordered, if that is known."""
    payments.start(str(order.pk), settings.TIME_TO_PAY, {"item": order.item, "member": member})


@on_expiry("order")
def unpaid(expired: Expired) -> None:
    """Cancel an order that is not paid, and notify who ordered. Run twice, it does the same as once."""
    order, payload = Order(pk=int(expired.name)), expired.payload
    order.settle(Order.State.CANCELLED)
    if payload["member"] and order.has_state(Order.State.CANCELLED):
        text = f"Your order was cancelled because it was not paid in time: {payload['item']}."
        notify(payload["member"], text, url=reverse("orders"), level="warning", request_id=expired.id)
