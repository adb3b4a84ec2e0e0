"""Items, the money of their owners, and the sales."""

from __future__ import annotations

from django.db import models
from django.db.models import F
from django.utils.translation import gettext_lazy as _


class Item(models.Model):
    """Something that a member owns. Prices are whole coins."""

    class State(models.TextChoices):
        FOR_SALE = "for_sale", _("For sale")
        SOLD = "sold", _("Sold")
        WITHDRAWN = "withdrawn", _("Not for sale")

    name = models.CharField(max_length=100)
    price = models.PositiveIntegerField()
    #: member id
    owner = models.CharField(max_length=64, db_index=True)
    #: member id: where the item is. It differs from the owner until the item is delivered.
    location = models.CharField(max_length=64)
    state = models.CharField(max_length=16, choices=State.choices, default=State.FOR_SALE, db_index=True)
    #: the largest fence of a lock that was used to change this row
    fence = models.BigIntegerField(default=0)

    class Meta:
        ordering = ("pk",)

    def __str__(self) -> str:
        return self.name


class Wallet(models.Model):
    """The money of a member, in whole coins. It is never negative."""

    member = models.CharField(max_length=64, unique=True)
    funds = models.PositiveIntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.funds} coins of {self.member}"

    @classmethod
    def add(cls, member: str, amount: int) -> bool:
        """Add an amount, which may be negative. False, with nothing changed, if the funds are too low."""
        cls.objects.get_or_create(member=member)
        rows = cls.objects.filter(member=member, funds__gte=-amount)
        return bool(rows.update(funds=F("funds") + amount))


class Sale(models.Model):
    """A purchase of one item. The buyer gets it when it is delivered."""

    item = models.ForeignKey(Item, models.CASCADE, related_name="sales")
    #: member id
    seller = models.CharField(max_length=64)
    #: member id
    buyer = models.CharField(max_length=64)
    price = models.PositiveIntegerField()
    sold_at = models.DateTimeField(auto_now_add=True)
    delivered_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return f"{self.item_id} to {self.buyer}"
