"""The countries of IP addresses, for example as keys of an aggregate."""

from __future__ import annotations

import functools
import ipaddress
import os
from typing import TYPE_CHECKING

from ...errors import ConfigurationError, InvalidArgument

if TYPE_CHECKING:
    from django.contrib.gis.geoip2 import GeoIP2

#: addresses whose country is cached: some 10 MB
CACHE_SIZE = 65_536


class Countries:
    """Looks up the countries of IP addresses in a GeoIP2 database, with Django's `GeoIP2`.

        countries = Countries()
        countries("2001:218::1")        # "JP"
        countries("192.168.0.1")        # ""

    `path` is a database (`.mmdb`, of countries or of cities) or its folder; by default the setting GEOIP_PATH
    of Django. Needs the extra `geoip`.

    A call takes an IPv4 or IPv6 address as str or bytes, and returns the ISO 3166-1 code of its country, or
    "" if the database has none, as for private addresses. The countries of the latest 65,536 addresses are
    cached. It raises InvalidArgument, a ValueError, for any other text: host names are not resolved.

    Raises ConfigurationError if the extra or the database is missing.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._find = functools.lru_cache(CACHE_SIZE)(functools.partial(_find, _open(path)))

    def __call__(self, ip: str | bytes) -> str:
        return self._find(ip)


def _open(path: str | os.PathLike[str] | None) -> GeoIP2:
    from django.contrib.gis import geoip2

    if not geoip2.HAS_GEOIP2:
        raise ConfigurationError(
            "Countries needs the package geoip2: pip install 'django-redis-messaging[geoip]'."
        )
    from maxminddb import InvalidDatabaseError

    try:
        return geoip2.GeoIP2(path)
    except (geoip2.GeoIP2Exception, InvalidDatabaseError, OSError) as error:
        raise ConfigurationError(
            "The GeoIP2 database of countries can't be opened: set GEOIP_PATH to the database or its folder,"
            f" or pass it as path. {error}"
        ) from error


def _find(database: GeoIP2, ip: str | bytes) -> str:
    from geoip2.errors import AddressNotFoundError

    if not isinstance(ip, str | bytes):
        raise TypeError(f"ip must be a str or bytes, not {type(ip).__name__}.")
    try:
        text = ip.decode("ascii") if isinstance(ip, bytes) else ip
        address = ipaddress.ip_address(text)
    except ValueError:
        raise InvalidArgument(f"ip must be an IPv4 or IPv6 address, not {ip!r:.60}.") from None
    try:
        # not as text: Django would look up text that it takes for a host name in the DNS
        return database.country(getattr(address, "ipv4_mapped", None) or address)["country_code"] or ""
    except AddressNotFoundError:
        return ""
