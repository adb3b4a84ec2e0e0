"""What happens when the time to pay is over."""

from __future__ import annotations

from django.conf import settings

from django_redis_messaging import Expired, Expiry, on_expiry

from .models import Order

payments = Expiry("order")


def await_payment(order: Order) -> None:
    """Begin to count."""
    payments.start(str(order.pk), settings.TIME_TO_PAY)


@on_expiry("order")
def unpaid(expired: Expired) -> None:
    """Cancel an order that is not paid. Run twice, it does the same as once."""
    Order(pk=int(expired.name)).settle(Order.State.CANCELLED)
