"""A plugin of coverage.py that measures branches with sys.monitoring on Python 3.12 and 3.13: a third faster
than with a trace function. From 3.14 on, coverage.py does so itself, because Python then tells the two
directions of a branch apart; before, an event that is disabled for one direction is disabled for both."""

import sys
from types import CodeType
from typing import Any

from coverage import env, sysmon


def coverage_init(registry: Any, options: Any) -> None:
    """Called by coverage.py before it starts."""
    if sys.version_info < (3, 12) or env.PYBEHAVIOR.branch_right_left:
        return
    events: Any = sys.monitoring.events
    events.BRANCH_LEFT = events.BRANCH_RIGHT = events.BRANCH
    env.PYBEHAVIOR.branch_right_left = True
    record = sysmon.SysMonitor.sysmon_branch_either
    #: measurement, code and offset of a branch → the direction that was recorded last
    taken: dict[tuple[int, int, int], int] = {}

    def branch(monitor: Any, code: CodeType, offset: int, destination: int) -> Any:
        place = id(monitor), id(code), offset
        last = taken.get(place)
        if last == destination:
            return None
        record(monitor, code, offset, destination)
        taken[place] = destination
        return None if last is None else sysmon.DISABLE

    sysmon.SysMonitor.sysmon_branch_either = branch  # type: ignore[method-assign]
