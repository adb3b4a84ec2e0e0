"""Resources of all services on one alias, and one operation of each kind on them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from .clusters import Topology

#: an operation on the resource with this number
Operation = Callable[[int], Coroutine[Any, Any, object]]
#: characters of a message, a notification, a job and an event
LENGTH = 200
#: resources of each kind
RESOURCES = 300
#: users with an inbox, chats of each, members of a chat
USERS, CHATS, MEMBERS = 60, 20, 10
#: an id beyond every message
NEWEST = 1_000_000_000
#: contacts of a directory
CONTACTS = 100


class Workload:
    """The operations of one topology. Resources with consecutive numbers are on the same primary, as far as
    possible; number 301 is number 1 again."""

    def __init__(self, topology: Topology) -> None:
        self.using = topology.alias
        self.body = "x" * LENGTH
        self.operations: dict[str, Operation] = {
            "send a message": self.send,
            "poll an open chat, nothing new": self.poll,
            "ack the newest message": self.ack,
            "pending of 20 chats, nothing new": lambda at: self.inbox("idle", at).apending(),
            "pending of 20 chats, one new each": lambda at: self.inbox("behind", at).apending(),
            "list of 20 chats": lambda at: self.inbox("behind", at).achats(limit=50),
            "push, pop and ack a job": self.do_job,
            "publish an event": lambda at: self.channel(at).apublish(self.body),
            "fetch events, nothing new": self.fetch,
            "start and cancel a timer": self.start_timer,
            "acquire and release a lock": self.lock,
            "suggest contacts": self.suggest,
            "send a notification": lambda at: self.mailbox(at).asend({"text": self.body}),
            "fetch 20 notifications": lambda at: self.mailbox(at).afetch(limit=20),
            "poll the bell": lambda at: self.mailbox(at).astatus(),
        }
        kinds = ("chat", "queue", "broadcast", "lock", "mailbox", "directory")
        self._names = {kind: _names(topology, kind) for kind in kinds}
        self._names["quiet"] = _names(topology, "chat", "quiet")
        #: what the reader of a quiet chat has seen
        self._known: dict[str, Any] = {}
        self._cursors: dict[str, str] = {}
        self._create_chats()
        self._create_inboxes()
        self._create_directories()

    def name(self, kind: str, at: int) -> str:
        """The name of a resource."""
        return self._names[kind][at % RESOURCES]

    def inbox(self, kind: str, at: int) -> Any:
        """A new object for each call, as in a web request."""
        from django_redis_messaging import Inbox

        return Inbox(f"{kind}-{at % USERS}", using=self.using)

    def channel(self, at: int) -> Any:
        from django_redis_messaging import Broadcast

        return Broadcast(self.name("broadcast", at), using=self.using)

    def mailbox(self, at: int) -> Any:
        from django_redis_messaging import Mailbox

        return Mailbox(self.name("mailbox", at), using=self.using)

    def chat(self, kind: str, at: int) -> Any:
        from django_redis_messaging import Chat

        return Chat(self.name(kind, at), using=self.using)

    async def send(self, at: int) -> None:
        await self.chat("chat", at).asend("ann", self.body)

    async def ack(self, at: int) -> None:
        await self.chat("chat", at).aack("bob", NEWEST)

    async def poll(self, at: int) -> None:
        chat = self.chat("quiet", at)
        known = self._known[chat.id]
        await chat.achanges("bob", after=known.cursor, edits=known.edits, moved=known.moved)

    async def do_job(self, at: int) -> None:
        from django_redis_messaging import DelayQueue

        queue = DelayQueue(self.name("queue", at), using=self.using)
        await queue.apush(self.body)
        [job] = await queue.apop(1)
        await queue.aack(job)

    async def fetch(self, at: int) -> None:
        channel = self.channel(at)
        batch = await channel.afetch(self._cursors.get(channel.channel))
        self._cursors[channel.channel] = batch.cursor

    async def start_timer(self, at: int) -> None:
        from django_redis_messaging import Expiry

        timers = Expiry("orders", using=self.using)
        await timers.astart(str(at), 600)
        await timers.acancel(str(at))

    async def lock(self, at: int) -> None:
        from django_redis_messaging import Lock

        async with Lock(self.name("lock", at), using=self.using):
            pass

    async def suggest(self, at: int) -> None:
        from django_redis_messaging import Directory

        await Directory(self.name("directory", at), using=self.using).asuggest("name")

    def _create_chats(self) -> None:
        from django_redis_messaging import Chat

        others = ["bob", *(f"member-{number}" for number in range(MEMBERS - 2))]
        for name in self._names["chat"]:
            Chat.create("ann", others, chat_id=name, using=self.using)
        for name in self._names["quiet"]:
            chat = Chat.create("ann", others, self.body, chat_id=name, using=self.using)
            self._known[name] = chat.changes("bob", after=1)

    def _create_inboxes(self) -> None:
        """Each user is a member of CHATS chats, each of which has MEMBERS members and one message."""
        from django_redis_messaging import Chat, Inbox

        for kind in ("idle", "behind"):
            for at in range(USERS * CHATS // MEMBERS):
                members = [f"{kind}-{(at + step) % USERS}" for step in range(MEMBERS)]
                Chat.create("ann", members, self.body, chat_id=f"{kind}-{at}", using=self.using)
        for number in range(USERS):
            Inbox(f"idle-{number}", using=self.using).pending(ack=True)
            Inbox(f"idle-{number}", using=self.using).pending()

    def _create_directories(self) -> None:
        from django_redis_messaging import Directory

        pairs = [(f"m{number}", f"Name {number}") for number in range(CONTACTS)]
        for name in self._names["directory"]:
            Directory(name, using=self.using).add_many(pairs)


def _names(topology: Topology, kind: str, prefix: str = "") -> list[str]:
    """Names of resources of a kind, sorted by the primary that owns them."""
    names = [f"{prefix or kind}-{number}" for number in range(RESOURCES)]
    return sorted(names, key=lambda name: topology.owner(f"{kind}:{name}"))
