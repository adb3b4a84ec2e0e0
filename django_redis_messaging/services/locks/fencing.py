"""Writes to the database that refuse a holder whose lock has been granted to another client since."""

from __future__ import annotations

from typing import Any

from django.db.models import Model, QuerySet

from ...errors import InvalidArgument
from ..common.arguments import integer

#: maximum of a fence: what a BigIntegerField can store
MAX_FENCE = 2**63 - 1


def fenced_update(queryset: QuerySet[Any, Any], field: str, fence: int, **values: Any) -> int:
    """Update the rows of a queryset, except those that a later holder of the lock has written.

    One UPDATE sets `field` to `fence`, and the fields in `values` as `QuerySet.update` does, in each row
    whose `field` is NULL or at most `fence`. Returns the number of updated rows: 0 if the queryset has no
    rows, or if later holders have written all of them. A holder can update a row several times.

    `field` names a BigIntegerField of the model. If another transaction has changed a row, the UPDATE waits
    until that has ended, then compares. In a transaction at REPEATABLE READ or SERIALIZABLE, PostgreSQL
    raises OperationalError instead if the other transaction was committed.

    Raises TypeError, InvalidArgument or an error of QuerySet.update before any query.

    Example::

        with Lock(f"account-{pk}") as lock:
            accounts = Account.objects.filter(pk=pk)
            if not fenced_update(accounts, "fence", lock.fence, balance=F("balance") - 30):
                raise RuntimeError("not withdrawn: another client has used the account since")
    """
    return _unless_later(queryset, field, fence, values).update(**{field: fence, **values})


async def afenced_update(queryset: QuerySet[Any, Any], field: str, fence: int, **values: Any) -> int:
    """Async version of `fenced_update`, through the queryset's `aupdate`."""
    return await _unless_later(queryset, field, fence, values).aupdate(**{field: fence, **values})


def _unless_later(
    queryset: QuerySet[Any, Any], field: str, fence: int, values: dict[str, Any]
) -> QuerySet[Any, Any]:
    """Check the arguments; returns the rows whose stored fence is not later than `fence`."""
    # not at the top: django.db.models also loads forms and templates, which this app does not need
    from django.db.models import Q, QuerySet

    if not isinstance(queryset, QuerySet):
        raise TypeError(
            f"queryset must be a QuerySet, not {type(queryset).__name__}: pass Model.objects.filter(…)."
        )
    _check_field(queryset.model, field)
    _check_fence(fence)
    if field in values:
        raise InvalidArgument(f"values must not contain {field!r}: this field is set to the fence.")
    for name in values:
        _check_table(queryset.model, name)
    found = queryset.filter(Q(**{f"{field}__lte": fence}) | Q(**{f"{field}__isnull": True}))
    _check_condition(found)
    return found


def _check_fence(fence: int) -> None:
    if type(fence) is int and fence == 0:
        raise InvalidArgument(
            "fence must be at least 1, not 0, which means that this thread or task has never acquired the "
            "lock: acquire it first."
        )
    integer(fence, "fence", minimum=1, maximum=MAX_FENCE)


def _check_field(model: type[Model], field: str) -> None:
    from django.core.exceptions import FieldDoesNotExist
    from django.db.models import BigIntegerField

    if not isinstance(field, str):
        raise TypeError(f"field must be the name of a field, not {type(field).__name__}.")
    try:
        found = model._meta.get_field(field)
    except FieldDoesNotExist:
        raise InvalidArgument(
            f"field must name a field of {model.__name__}; {field!r} does not exist."
        ) from None
    if not isinstance(found, BigIntegerField) or found.primary_key:
        raise InvalidArgument(
            f"field must name a BigIntegerField or PositiveBigIntegerField that is not the primary key; "
            f"{field!r} of {model.__name__} has the type {type(found).__name__}."
        )
    _check_table(model, field)


def _check_table(model: type[Model], name: str) -> None:
    """Check that a field is not inherited from another table. Django updates that by a query of its own."""
    owner = model._meta.get_field(name).model._meta.concrete_model
    if owner is not None and owner is not model._meta.concrete_model:
        raise InvalidArgument(
            f"{name!r} is in the table of {owner.__name__}, not of {model.__name__}, and one UPDATE changes "
            f"one table: use a queryset of {owner.__name__}."
        )


def _check_condition(found: QuerySet[Any, Any]) -> None:
    """Check that the UPDATE itself compares the fences.

    If a queryset joins tables, Django moves all its conditions to a subquery. PostgreSQL does not repeat a
    subquery after waiting for a locked row, and would compare with the fence from before.
    """
    if found.query.count_active_tables() > 1:
        raise InvalidArgument(
            "queryset must not filter or annotate by fields of related models, because the UPDATE could "
            "compare outdated fences. Use Model.objects.filter(pk__in=queryset.values('pk'))."
        )
