"""URLs of a site with the debug toolbar. Importing its URLs needs its app."""

from __future__ import annotations

from debug_toolbar.toolbar import debug_toolbar_urls
from django.http import HttpRequest, HttpResponse
from django.urls import path

from django_redis_messaging import Chat, MessagingError

#: what the views send and ask for: nothing of it is shown
SECRET = "only-for-ann"


def page(request: HttpRequest) -> HttpResponse:
    chat = Chat.create("ann", ["bob"], SECRET)
    chat.changes("ann", after=0)
    try:
        chat.send(SECRET, SECRET)
    except MessagingError:
        return HttpResponse("<html><body>refused</body></html>")
    return HttpResponse(status=500)


async def apage(request: HttpRequest) -> HttpResponse:
    chat = await Chat.acreate("ann", ["bob"], SECRET)
    await chat.achanges("ann", after=0)
    try:
        await chat.asend(SECRET, SECRET)
    except MessagingError:
        return HttpResponse("<html><body>refused</body></html>")
    return HttpResponse(status=500)


urlpatterns = [path("page/", page), path("apage/", apage), *debug_toolbar_urls()]
