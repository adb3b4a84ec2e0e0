"""The orders."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class Order(models.Model):
    """An order. A task sends its confirmation; a timer cancels it if it is not paid in time."""

    class State(models.TextChoices):
        OPEN = "open", _("Not paid yet")
        PAID = "paid", _("Paid")
        CANCELLED = "cancelled", _("Cancelled: not paid in time")

    email = models.EmailField()
    item = models.CharField(max_length=100)
    ordered_at = models.DateTimeField(auto_now_add=True)
    state = models.CharField(max_length=16, choices=State.choices, default=State.OPEN)
    #: id of the result of the confirmation task
    confirmation = models.CharField(max_length=64, blank=True)

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return f"{self.item} for {self.email}"

    def settle(self, state: State) -> bool:
        """Pay or cancel an open order. Returns False if it was not open any more: the first change wins."""
        return bool(Order.objects.filter(pk=self.pk, state=self.State.OPEN).update(state=state))

    def has_state(self, state: State) -> bool:
        """Whether the order has this state in the database."""
        return Order.objects.filter(pk=self.pk, state=state).exists()
