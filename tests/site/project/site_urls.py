"""A page that notifies user 1."""

from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from django_redis_messaging import notify


@csrf_exempt
def order(request: HttpRequest) -> HttpResponse:
    notify("1", "Your order is on its way")
    return HttpResponse("ordered")


urlpatterns = [path("order/", order)]
