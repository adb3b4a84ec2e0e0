"""The URLs of the console. With an admin, its entries lead there; else include them:
`path("console/", include("django_redis_messaging.console.urls"))`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from django.urls import URLPattern, URLResolver, include, path

from . import SECTIONS, audit, channels, coordination, history, jobs, overview, queues, schedule, search
from .base import ConsolePage

if TYPE_CHECKING:
    from django.contrib.admin import AdminSite

app_name = "messaging_console"


class Route(NamedTuple):
    """A page: the name of its URL is `messaging_NAME`."""

    path: str
    view: type[ConsolePage]
    name: str


#: by section; the first page of each is the one to which its entry leads
ROUTES: dict[str, list[Route]] = {
    "overview": [
        Route("", overview.OverviewPage, "overview"),
        Route("search/", search.SearchPage, "search"),
    ],
    "queues": [
        Route("", queues.QueuesPage, "queues"),
        Route("queue/", queues.QueuePage, "queue"),
        Route("task/", jobs.JobPage, "task"),
        Route("job/", jobs.JobPage, "job"),
        Route("workers/", queues.WorkersPage, "workers"),
        Route("worker/", queues.WorkerPage, "worker"),
        Route("pause/", queues.PauseQueue, "pause"),
        Route("resume/", queues.ResumeQueue, "resume"),
        Route("purge/", queues.PurgeQueue, "purge"),
        *(Route(f"{one.action}/", one, one.action) for one in jobs.CHANGES),
    ],
    "schedule": [
        Route("", schedule.SchedulePage, "schedule"),
        Route("periodic/", schedule.PeriodicPage, "periodic"),
        *(Route(f"{one.action}/", one, one.action) for one in schedule.PERIODIC_CHANGES),
    ],
    "timers": [
        Route("", schedule.TimersPage, "timers"),
        Route("timer/", schedule.TimerPage, "timer"),
        *(Route(f"{one.action}/", one, one.action) for one in schedule.TIMER_CHANGES),
    ],
    "locks": [
        Route("", coordination.LocksPage, "locks"),
        Route("lock/", coordination.LockPage, "lock"),
        Route("rwlock/", coordination.ReadWriteLockPage, "rwlock"),
        Route("semaphore/", coordination.SemaphorePage, "semaphore"),
        Route("latch/", coordination.LatchPage, "latch"),
        Route("release/", coordination.Release, "release"),
        Route("set-limit/", coordination.SetLimit, "set_limit"),
    ],
    "limits": [
        Route("", coordination.LimitsPage, "limits"),
        Route("rate/", coordination.RatePage, "rate"),
        Route("reset/", coordination.ResetLimit, "reset"),
    ],
    "history": [Route("", history.HistoryPage, "history")],
    "chats": [
        Route("", channels.ChatsPage, "chats"),
        Route("chat/", channels.ChatPage, "chat"),
    ],
    "channels": [
        Route("", channels.ChannelsPage, "channels"),
        Route("mailbox/", channels.MailboxPage, "mailbox"),
        Route("broadcast/", channels.BroadcastPage, "broadcast"),
        Route("files/", channels.FilesPage, "files"),
        Route("directory/", channels.DirectoryPage, "directory"),
    ],
    "audit": [Route("", audit.AuditPage, "audit")],
}


def patterns(section: str, site: AdminSite | None = None) -> list[URLPattern]:
    """The URLs of a section: those of an admin site, for its staff only, or those of console.urls."""
    found = []
    for route in ROUTES[section]:
        page = route.view.as_view(admin_site=site)
        view = page if site is None else site.admin_view(page)
        found.append(path(route.path, view, name=f"messaging_{route.name}"))
    return found


urlpatterns: list[URLPattern | URLResolver] = [
    path("" if number == 0 else f"{section.name}/", include(patterns(section.name)))
    for number, section in enumerate(SECTIONS)
]
