"""URLs: sign-in at /, messages at /messages/, orders at /orders/, options at /shop/, the market at
/market/, the traffic at /traffic/, and the admin."""

from django.contrib import admin
from django.contrib.auth.views import LogoutView
from django.templatetags.static import static
from django.urls import include, path
from django.views.generic import RedirectView
from market.views import BuyView, MarketView, SellView, WithdrawView
from orders.views import OrdersView, PayView
from people.views import SignInView
from shop.views import ShopView
from traffic.views import ProcessView, TrafficView

urlpatterns = [
    path("", SignInView.as_view(), name="sign-in"),
    path("sign-out/", LogoutView.as_view(), name="logout"),
    path("messages/", include("django_redis_messaging.urls")),
    path("orders/", OrdersView.as_view(), name="orders"),
    path("orders/<int:pk>/pay/", PayView.as_view(), name="pay"),
    path("shop/", ShopView.as_view(), name="shop"),
    path("market/", MarketView.as_view(), name="market"),
    path("market/buy/", BuyView.as_view(), name="market-buy"),
    path("market/<int:pk>/sell/", SellView.as_view(), name="market-sell"),
    path("market/<int:pk>/withdraw/", WithdrawView.as_view(), name="market-withdraw"),
    path("traffic/", TrafficView.as_view(), name="traffic"),
    path("traffic/process/", ProcessView.as_view(), name="traffic-process"),
    path("admin/", admin.site.urls),
    path("favicon.ico", RedirectView.as_view(url=static("people/icon.svg"))),
]
