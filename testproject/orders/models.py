"""What was ordered."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """One order, and the task that confirms it."""

    email = models.EmailField()
    item = models.CharField(max_length=100)
    ordered_at = models.DateTimeField(auto_now_add=True)
    #: id of the task's result
    confirmation = models.CharField(max_length=64, blank=True)

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return f"{self.item} for {self.email}"
