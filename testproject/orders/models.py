"""What was ordered."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class Order(models.Model):
    """One order, and the task that confirms it. A timer cancels it where it isn't paid in time."""

    class State(models.TextChoices):
        OPEN = "open", _("Not paid yet")
        PAID = "paid", _("Paid")
        CANCELLED = "cancelled", _("Cancelled: not paid in time")

    email = models.EmailField()
    item = models.CharField(max_length=100)
    ordered_at = models.DateTimeField(auto_now_add=True)
    state = models.CharField(max_length=16, choices=State.choices, default=State.OPEN)
    #: id of the task's result
    confirmation = models.CharField(max_length=64, blank=True)

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return f"{self.item} for {self.email}"

    def settle(self, state: State) -> bool:
        """Let an open order be paid or cancelled: whichever comes first holds."""
        return bool(Order.objects.filter(pk=self.pk, state=self.State.OPEN).update(state=state))

    def has_state(self, state: State) -> bool:
        """Whether that is its state in the database now."""
        return Order.objects.filter(pk=self.pk, state=state).exists()
