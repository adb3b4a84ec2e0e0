"""What a call has of its own beyond its arguments: its group, when it expires, and its tags.

They are fields of its job (services/jobs/_records.lua), which the scripts read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

from django.conf import settings
from django.utils import timezone
from django.utils.module_loading import import_string

from ..core.encoding import name as checked
from ..errors import InvalidArgument
from ..services.common.arguments import count, milliseconds, timestamp
from .call_arguments import call_name, check_source
from .task import RedisTask

#: tags of a call
MAX_TAGS = 10
#: greatest weight of a group
MAX_WEIGHT = 100
#: characters of a name that are stored as they are, beside letters, digits and _.-~
_READABLE = ":/@+"

#: the option GROUP_WEIGHT: group → weight
WeightOf = Callable[[str], int]


def check_call_fields(task: RedisTask) -> None:
    """Raise TypeError or InvalidArgument for a value that is not allowed."""
    if task.group is not None:
        check_source(task.group, "group", task.func, task.takes_context)
    if task.expires is not None:
        _stored_expiry(task.expires)
    if not isinstance(task.tags, tuple):
        raise TypeError(f"tags must be a tuple, not {type(task.tags).__name__}.")
    if len(task.tags) > MAX_TAGS:
        raise InvalidArgument(f"A task can have up to {MAX_TAGS} tags, not {len(task.tags)}.")
    for source in task.tags:
        check_source(source, "tag", task.func, task.takes_context)


def has_call_fields(task: RedisTask) -> bool:
    """Whether the calls of a task have such fields."""
    return task.group is not None or task.expires is not None or bool(task.tags)


def call_fields(
    task: RedisTask, args: Sequence[Any], kwargs: Mapping[str, Any], weight_of: WeightOf | None
) -> str:
    """The fields of a call, as they are stored. Raises what call_name() and `weight_of` raise."""
    call = task.func, task.takes_context, args, kwargs
    fields = ""
    if task.group is not None:
        group = call_name(task.group, "group", *call)
        weight = 1 if weight_of is None else count(weight_of(group), "GROUP_WEIGHT", maximum=MAX_WEIGHT)
        fields += f" group={stored_name(group)}" + (f" weight={weight}" if weight > 1 else "")
    if task.expires is not None:
        fields += f" expires={_stored_expiry(task.expires)}"
    if task.tags:
        tags = dict.fromkeys(stored_name(call_name(source, "tag", *call)) for source in task.tags)
        fields += f" tags={','.join(tags)} queue={quote(task.queue_name)}"
    return fields


def stored_name(name: str) -> str:
    """The name of a group or a tag as it is stored."""
    return quote(name, safe=_READABLE)


def stored_tag(tag: str) -> str:
    """The stored form of a tag that a caller gives; raises TypeError or InvalidArgument."""
    return stored_name(checked(tag, "tag"))


def find_weights(chosen: WeightOf | str | None) -> WeightOf | None:
    """The function of the option GROUP_WEIGHT; raises TypeError or InvalidArgument if there is none."""
    if isinstance(chosen, str):
        try:
            chosen = import_string(chosen)
        except ImportError as error:
            raise InvalidArgument(f"GROUP_WEIGHT can't be imported: {error}") from error
    if chosen is not None and not callable(chosen):
        raise TypeError(f"GROUP_WEIGHT must be a function, or its dotted path, not {chosen!r}.")
    return chosen


def check_expiry(task: RedisTask, run_after: datetime | None) -> None:
    """Raise InvalidArgument for a call that would expire before it is due. Not a part of the check of a task:
    a call that is stored can be read, whatever has been changed since."""
    expires = task.expires
    if isinstance(expires, datetime):
        if run_after is not None and expires <= run_after:
            raise InvalidArgument(f"expires must be later than run_after, {run_after}: not {expires}.")
    elif expires is not None:
        ms, now = milliseconds(expires, "expires"), timezone.now()
        delay = milliseconds(task.delay or 0, "delay") if run_after is None else 0
        if ms <= delay or (run_after is not None and now + timedelta(milliseconds=ms) <= run_after):
            raise InvalidArgument(f"expires must be later than the call is due: not {expires} s from now.")


def _stored_expiry(expires: float | timedelta | datetime) -> str:
    """In ms: a moment, or + and the time from the push until then."""
    if not isinstance(expires, datetime):
        return f"+{milliseconds(expires, 'expires', minimum=1)}"
    if settings.USE_TZ and expires.tzinfo is None:
        raise InvalidArgument("expires must be an aware datetime. Use django.utils.timezone.now().")
    return str(max(math.floor(timestamp(expires, "expires") * 1000), 0))
