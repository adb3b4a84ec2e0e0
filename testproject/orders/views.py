"""One page: order something, and see how far its confirmation is."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.forms import ModelForm
from django.http import HttpResponse
from django.urls import reverse_lazy
from django.views.generic import CreateView

from django_redis_messaging.tasks.compat import TaskResult, TaskResultDoesNotExist

from .models import Order
from .tasks import confirm

#: orders the page shows
SHOWN = 20


class OrdersView(CreateView):  # type: ignore[type-arg]
    """The latest orders with the state of their tasks, and a form for another one."""

    model = Order
    fields = ["item", "email"]  # noqa: RUF012  (as Django's views have it)
    template_name = "orders/orders.html"
    success_url = reverse_lazy("orders")

    def form_valid(self, form: ModelForm[Order]) -> HttpResponse:
        """Store the order and its task: the task is sent when the order is committed."""
        with transaction.atomic():
            answer = super().form_valid(form)
            order = self.object
            assert order is not None  # noqa: S101
            order.confirmation = confirm.enqueue_on_commit().enqueue(order.pk).id
            order.save()
        return answer

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        orders = [(order, _result(order)) for order in Order.objects.all()[:SHOWN]]
        return super().get_context_data(orders=orders, **kwargs)


def _result(order: Order) -> TaskResult | None:
    try:
        return confirm.get_result(order.confirmation)
    except TaskResultDoesNotExist:
        return None
