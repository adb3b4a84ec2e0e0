"""One page: order something, pay for it, and see how far its confirmation is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.forms import ModelForm
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse_lazy
from django.views.generic import CreateView, View

from django_redis_messaging.tasks.compat import TaskResult, TaskResultDoesNotExist
from django_redis_messaging.web import identity

from .expiries import await_payment, payments
from .models import Order
from .tasks import confirm

#: orders the page shows
SHOWN = 20


@dataclass(frozen=True)
class Line:
    """An order as the page shows it."""

    order: Order
    result: TaskResult | None
    #: whole seconds until it is cancelled
    remaining: int | None


class OrdersView(CreateView):  # type: ignore[type-arg]
    """The latest orders with the state of their tasks, and a form for another one."""

    model = Order
    fields = ["item", "email"]  # noqa: RUF012  (as Django's views have it)
    template_name = "orders/orders.html"
    success_url = reverse_lazy("orders")

    def form_valid(self, form: ModelForm[Order]) -> HttpResponse:
        """Store the order and its task: the task is sent, and the timer started, when it is committed."""
        with transaction.atomic():
            answer = super().form_valid(form)
            order = self.object
            assert order is not None  # noqa: S101
            member = self.member()
            order.confirmation = confirm.enqueue_on_commit().enqueue(order.pk, member).id
            order.save()
            transaction.on_commit(lambda: await_payment(order, member))
        return answer

    def member(self) -> str:
        """Who orders, as the notifications know people; empty where nobody is signed in."""
        user = self.request.user
        return identity.current().member_id(user) if user.is_authenticated else ""

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        lines = [Line(order, _result(order), _remaining(order)) for order in Order.objects.all()[:SHOWN]]
        return super().get_context_data(lines=lines, **kwargs)


class PayView(View):
    """Pay for an order, where there is still time."""

    def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        """The database says whether it was in time; the timer is not needed any more then."""
        order = get_object_or_404(Order, pk=pk)
        if order.settle(Order.State.PAID):
            payments.cancel(str(order.pk))
        return redirect("orders")


def _remaining(order: Order) -> int | None:
    left = payments.remaining(str(order.pk)) if order.state == Order.State.OPEN else None
    return None if left is None else round(left)


def _result(order: Order) -> TaskResult | None:
    try:
        return confirm.get_result(order.confirmation)
    except TaskResultDoesNotExist:
        return None
