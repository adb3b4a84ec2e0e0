"""What is done in the background."""

from __future__ import annotations

from smtplib import SMTPException

from django.core.mail import send_mail

from django_redis_messaging.tasks import task

from .models import Order


@task(max_attempts=5, retry_on=(SMTPException, OSError), timeout=60)
def confirm(order_id: int) -> str:
    """Send the confirmation of an order; tried again, later each time, while the mail server fails."""
    order = Order.objects.get(pk=order_id)
    send_mail("Your order", f"Thank you for ordering: {order.item}.", None, [order.email])
    return order.email
