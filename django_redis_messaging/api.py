"""The public names, by subject. The package loads this module at the first use of one of them."""

from .core.operations import observe, unobserve
from .core.outcome import deadline
from .errors import (
    BatchClosed,
    BatchNotFound,
    ChatExists,
    ChatNotFound,
    ConfigurationError,
    FileChanged,
    FileChannelError,
    FileCorrupt,
    InvalidArgument,
    LatchError,
    LeaseLost,
    LimitExceeded,
    LockError,
    LockNotOwnedError,
    MessagingError,
    NotAMember,
    NotPermitted,
    OutcomeUnknown,
    PermitLost,
    RateExceeded,
    ScheduleExists,
    SemaphoreError,
    Unavailable,
    UnknownConsumer,
)
from .handlers import Expired, KeyEvent, on_expiry, on_key_event
from .services import live
from .services.aggregates import Aggregator, Count, Counted, Countries
from .services.broadcasts import Batch, Broadcast, Event
from .services.chats import Changes, Chat, ChatInfo, ChatSummary, Member, Message, Names, Page, Pending
from .services.chats.inbox import Inbox
from .services.common.things import Thing
from .services.directories import Contact, Directory
from .services.directories.recent import RecentContacts
from .services.expiries import Expiry
from .services.explaining import Cause, Explanation, aexplain, explain
from .services.files import (
    ConsumerStats,
    File,
    FileChannel,
    FileStats,
    Progress,
    Report,
    gunzip,
    iter_lines,
    unzstd,
)
from .services.jobs import DeadJob, DelayQueue, Job, Paused, QueueStats
from .services.latches import Latch, LatchInfo
from .services.locks import Leader, Lock, LockInfo, MultiLock, Term, afenced_update, fenced_update
from .services.mailboxes import (
    Mail,
    Mailbox,
    MailboxStatus,
    MailPage,
    anotify,
    anotify_many,
    notify,
    notify_many,
)
from .services.rates import Decision, Rate, RateLimit
from .services.rwlocks import (
    ReadLock,
    ReadWriteLock,
    ReadWriteLockHolder,
    ReadWriteLockInfo,
    ReadWriteLockWaiter,
    WriteLock,
)
from .services.semaphores import Semaphore, SemaphoreHolder, SemaphoreInfo, SemaphoreWaiter
from .services.users.forgetting import aforget, forget
from .services.users.privacy import Blocks, Choice, Choices
from .web.limits import rate_limit

__all__ = [  # noqa: RUF022 (grouped: this is the table of contents)
    # group chat
    "Chat",
    "Inbox",
    "Message",
    "Page",
    "Changes",
    "Pending",
    "ChatSummary",
    "ChatInfo",
    "Member",
    "Names",
    "Blocks",
    "Choices",
    "Choice",
    # notifications
    "Mailbox",
    "Mail",
    "MailPage",
    "MailboxStatus",
    "notify",
    "anotify",
    "notify_many",
    "anotify_many",
    # broadcast
    "Broadcast",
    "Event",
    "Batch",
    # contacts
    "Directory",
    "RecentContacts",
    "Contact",
    # live updates
    "live",
    # background work
    "DelayQueue",
    "Job",
    "DeadJob",
    "Paused",
    "QueueStats",
    # locks
    "Lock",
    "LockInfo",
    "MultiLock",
    "fenced_update",
    "afenced_update",
    "ReadWriteLock",
    "ReadLock",
    "WriteLock",
    "ReadWriteLockInfo",
    "ReadWriteLockHolder",
    "ReadWriteLockWaiter",
    "Semaphore",
    "SemaphoreInfo",
    "SemaphoreHolder",
    "SemaphoreWaiter",
    # rate limits
    "RateLimit",
    "Rate",
    "Decision",
    "rate_limit",
    # coordination
    "Latch",
    "LatchInfo",
    "Leader",
    "Term",
    # files, and counts of their lines
    "FileChannel",
    "File",
    "Report",
    "Progress",
    "FileStats",
    "ConsumerStats",
    "iter_lines",
    "gunzip",
    "unzstd",
    "Aggregator",
    "Counted",
    "Count",
    "Countries",
    # timers and keyspace events
    "Expiry",
    "Expired",
    "on_expiry",
    "KeyEvent",
    "on_key_event",
    # deletion of a user's data
    "forget",
    "aforget",
    # errors
    "MessagingError",
    "ConfigurationError",
    "InvalidArgument",
    "NotAMember",
    "NotPermitted",
    "ChatNotFound",
    "ChatExists",
    "ScheduleExists",
    "LimitExceeded",
    "RateExceeded",
    "LeaseLost",
    "LockError",
    "LockNotOwnedError",
    "SemaphoreError",
    "PermitLost",
    "LatchError",
    "BatchNotFound",
    "BatchClosed",
    "FileChannelError",
    "UnknownConsumer",
    "FileChanged",
    "FileCorrupt",
    "Unavailable",
    "OutcomeUnknown",
    # why something waits
    "explain",
    "aexplain",
    "Explanation",
    "Cause",
    "Thing",
    # observation and deadlines
    "observe",
    "unobserve",
    "deadline",
]
