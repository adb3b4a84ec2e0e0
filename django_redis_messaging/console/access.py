"""Who may use the console, and what is shown to them: the hook `REDIS_MESSAGING["CONSOLE"]`."""

from __future__ import annotations

import re
from typing import Any

from .. import conf
from ..services.common.things import Thing

#: kinds of things whose contents users have written to each other
PRIVATE_KINDS = {"chat", "mailbox"}
#: what is shown in place of a secret
MASK = "••••••"
_SECRET = re.compile(r"password|passwd|secret|token|api_?key|authorization|credential|private_?key", re.I)


class Console:
    """What each user may do in the console. A site subclasses it, and sets CONSOLE to the path of its class.

    class Operators(Console):
        def may_view(self, user):
            return user.is_active and user.groups.filter(name="operators").exists()
    """

    def may_view(self, user: Any) -> bool:
        """Whether the user may see the pages. The default allows active superusers. It is called for each
        page, and for the admin's index."""
        return bool(user.is_active and getattr(user, "is_superuser", False))

    def may_act(self, user: Any, action: str, thing: Thing) -> bool:
        """Whether the user, who may see the pages, may do this: "retry" a task, "release" a lock. By default:
        yes. docs/console.md lists the actions. For an action on all that match a filter, `thing` is the
        queue."""
        return True

    def may_read(self, user: Any, thing: Thing) -> bool:
        """Whether the user, who may see the pages, may read what a thing contains: the arguments and results
        of a task, a payload, the messages of a chat. By default: all but what users write to each other."""
        return thing.kind not in PRIVATE_KINDS

    def mask(self, name: str, value: Any) -> Any:
        """What is shown for a named value, such as a keyword argument. The default masks values whose names
        look like those of secrets.

        >>> Console().mask("api_key", "5fz"), Console().mask("order", 17)
        ('••••••', 17)
        """
        return MASK if _SECRET.search(name) else value


@conf.cached
def current() -> Console:
    """The class in the settings, instantiated once."""
    return conf.instance("CONSOLE", Console)
