"""Every key name, one builder each; the builder's docstring is the key's schema.

PREFIX:1:{chat:42}:log        prefix outside the braces: one ACL pattern covers all
       |  |                   1: the data format
       |  what one resource owns shares a slot
"""

from .broadcasts import BroadcastKeys
from .chats import ChatKeys, newest_keys
from .directories import DirectoryKeys, directories, indexing
from .expiries import TIMERS, dispatch, namespaces, timer, timer_name
from .health import PROBES, probe
from .jobs import JobKeys, QueueKeys, queues
from .locks import LockKeys, checked_lock_key, lock_key
from .mailboxes import MailboxKeys
from .names import FORMAT, MAX_NAME_BYTES, checked_prefix, encoded, name, tag
from .semaphores import SemaphoreKeys
from .users import UserKeys

__all__ = [
    "FORMAT",
    "MAX_NAME_BYTES",
    "PROBES",
    "TIMERS",
    "BroadcastKeys",
    "ChatKeys",
    "DirectoryKeys",
    "JobKeys",
    "LockKeys",
    "MailboxKeys",
    "QueueKeys",
    "SemaphoreKeys",
    "UserKeys",
    "checked_lock_key",
    "checked_prefix",
    "directories",
    "dispatch",
    "encoded",
    "indexing",
    "lock_key",
    "name",
    "namespaces",
    "newest_keys",
    "probe",
    "queues",
    "tag",
    "timer",
    "timer_name",
]
