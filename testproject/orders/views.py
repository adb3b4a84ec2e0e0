"""A page to order something, pay for it, and follow its confirmation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib.auth.mixins import LoginRequiredMixin
from django.contrib.auth.views import redirect_to_login
from django.db import transaction
from django.forms import ModelForm
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse, reverse_lazy
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy
from django.views.generic import CreateView, View

from django_redis_messaging.tasks.compat import TaskResult, TaskResultDoesNotExist
from django_redis_messaging.web import identity

from .expiries import payments, start_payment_timer
from .models import Order
from .tasks import confirm

#: orders on the page
ORDERS_PER_PAGE = 20
#: the labels of TaskResultStatus, which Django does not translate into all languages
STATUSES = (
    pgettext_lazy("Task", "Ready"),
    pgettext_lazy("Task", "Running"),
    pgettext_lazy("Task", "Failed"),
    pgettext_lazy("Task", "Successful"),
)


@dataclass(frozen=True)
class Line:
    """An order with everything the page shows of it."""

    order: Order
    result: TaskResult | None
    #: whole seconds until the order is cancelled; None if it is not open
    remaining: int | None


class OrderForm(ModelForm):  # type: ignore[type-arg]
    """The form to order something."""

    class Meta:
        model = Order
        fields = ("item", "email")
        labels = {"item": _("Item"), "email": _("Email")}  # noqa: RUF012  (as in Django's own forms)


class OrdersView(LoginRequiredMixin, CreateView):  # type: ignore[type-arg]
    """The latest orders with the status of their tasks, and a form to order."""

    form_class = OrderForm
    template_name = "orders/orders.html"
    success_url = reverse_lazy("orders")

    def form_valid(self, form: ModelForm[Order]) -> HttpResponse:
        """Save the order. The task is sent and the timer started when the transaction is committed."""
        with transaction.atomic():
            response = super().form_valid(form)
            order = self.object
            assert order is not None  # noqa: S101
            member = self.member()
            order.confirmation = confirm.enqueue_on_commit().enqueue(order.pk, member).id
            order.save()
            transaction.on_commit(lambda: start_payment_timer(order, member))
        return response

    def member(self) -> str:
        """The member id of the user."""
        return identity.current().member_id(self.request.user)

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        orders = Order.objects.all()[:ORDERS_PER_PAGE]
        lines = [Line(order, _result(order), _remaining(order)) for order in orders]
        return super().get_context_data(lines=lines, **kwargs)


class PayView(LoginRequiredMixin, View):
    """Pays for an order that is still open."""

    def handle_no_permission(self) -> HttpResponseRedirect:
        """Return to the orders after signing in: this view has no page."""
        return redirect_to_login(reverse("orders"))

    def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Pay, and cancel the timer. If both happen at once, the database decides which came first."""
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
