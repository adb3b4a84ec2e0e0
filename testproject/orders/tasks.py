"""Background tasks."""

from __future__ import annotations

from smtplib import SMTPException

from django.core.mail import send_mail
from django.dispatch import receiver
from django.urls import reverse

from django_redis_messaging import notify
from django_redis_messaging.tasks import task
from django_redis_messaging.tasks.compat import TaskResult, TaskResultStatus, task_finished

from .models import Order


@task(max_attempts=5, retry_on=(SMTPException, OSError), timeout=60)
def confirm(order_id: int, member: str = "") -> str:
    """Send the confirmation of an order. Retried with growing delays while the mail server fails.

    `member` is the customer's member id, or empty; the customer is notified when the task has finished.
    """
    order = Order.objects.get(pk=order_id)
    send_mail("Your order", f"Thank you for ordering: {order.item}.", None, [order.email])
    return order.email


@receiver(task_finished, dispatch_uid="orders.notify_customer")
def notify_customer(sender: object, task_result: TaskResult, **_: object) -> None:
    """Notify the customer. After a crash a task may run again: the request_id prevents duplicates."""
    if task_result.task.name != confirm.name or len(task_result.args) < 2 or not task_result.args[1]:
        return
    order, member = Order.objects.get(pk=task_result.args[0]), task_result.args[1]
    done = task_result.status == TaskResultStatus.SUCCESSFUL
    text = f"Your order is confirmed: {order.item}." if done else f"{order.item} could not be confirmed."
    notify(
        member,
        text,
        url=reverse("orders"),
        level="success" if done else "error",
        request_id=task_result.id,
    )
