"""Why a trade was refused. Nothing was changed then."""

from __future__ import annotations

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _


class TradeError(Exception):
    """A trade was refused. Its text is shown to the user; `item` is the name of an item, or of several."""

    text: str | Promise = ""

    def __init__(self, item: str = "") -> None:
        super().__init__(str(self.text) % {"item": item})


class InvalidSelection(TradeError):
    """No items were selected, or too many."""

    text = _("Select between 1 and 20 items.")


class InvalidPrice(TradeError):
    """The price is out of range."""

    text = _("The price must be a whole number between 1 and 1,000,000.")


class AlreadySold(TradeError):
    """Another buyer was faster."""

    text = _("Sold to somebody else a moment ago: %(item)s.")


class NotForSale(TradeError):
    """The item doesn't exist, or its owner keeps it."""

    text = _("Not for sale any more: %(item)s.")


class OwnItem(TradeError):
    """The buyer owns the item."""

    text = _("You already own this: %(item)s.")


class NotYours(TradeError):
    """Only the owner can sell an item, or stop selling it."""

    text = _("You can only sell what you own.")


class PriceChanged(TradeError):
    """The seller has changed the price since the buyer saw it."""

    text = _("The price has changed, so nothing was bought: %(item)s.")


class TooExpensive(TradeError):
    """The funds of the buyer don't suffice."""

    text = _("You don't have enough coins for this: %(item)s.")


class Busy(TradeError):
    """The lock of an item was not free in time."""

    text = _("Somebody else is trading this at the moment. Please try again.")


class StaleLock(TradeError):
    """The lease of the lock ended before the write, and another holder has changed the item since."""

    text = _("Changed by somebody else at the same moment. Please try again: %(item)s.")
