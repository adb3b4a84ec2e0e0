"""Where requests come from: `origin_of` returns the country of an address, or at least its region.

An aggregate takes any function for this. This one asks three sources, so that the page shows something on
every machine: a table for the addresses of the generated log; a GeoIP2 database (`Countries`), if there is
one; and the registries that assign blocks of addresses to regions.
"""

from __future__ import annotations

import functools
import ipaddress
import logging
from collections.abc import Callable

from django.utils.translation import gettext, gettext_noop

from django_redis_messaging import ConfigurationError, Countries

logger = logging.getLogger(__name__)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

#: networks that are reserved for documentation, with countries that were made up for the generated log
SAMPLE_NETWORKS: dict[Network, str] = {
    ipaddress.ip_network(network): country
    for network, country in {
        "192.0.2.0/25": "US",
        "2001:db8:1::/48": "DE",
        "198.51.100.0/25": "IN",
        "203.0.113.0/25": "BR",
        "2001:db8:2::/48": "JP",
        "192.0.2.128/25": "FR",
        "198.51.100.128/25": "NG",
        "203.0.113.128/25": "SE",
        "2001:db8:3::/48": "KE",
        "2001:db8:4::/48": "MX",
        "2001:db8:5::/48": "NZ",
        "10.0.0.0/8": "",
    }.items()
}
COUNTRIES = {
    "BR": gettext_noop("Brazil"),
    "DE": gettext_noop("Germany"),
    "FR": gettext_noop("France"),
    "IN": gettext_noop("India"),
    "JP": gettext_noop("Japan"),
    "KE": gettext_noop("Kenya"),
    "MX": gettext_noop("Mexico"),
    "NG": gettext_noop("Nigeria"),
    "NZ": gettext_noop("New Zealand"),
    "SE": gettext_noop("Sweden"),
    "US": gettext_noop("United States"),
}
#: region → first bytes of IPv4 addresses, and networks of IPv6 addresses, that its registry assigns:
#: https://www.iana.org/numbers
REGIONS = {
    gettext_noop("Africa"): ("41 102 105 154 196-197", "2c00::/12"),
    gettext_noop("Asia and Pacific"): (
        "1 14 27 36 39 42-43 49 58-61 101 103 106 110-126 133 150 153 163 171 175 180 182-183 202-203 210-211"
        " 218-223",
        "2400::/12",
    ),
    gettext_noop("Europe and Middle East"): (
        "2 5 25 31 37 46 51 53 57 62 77-95 109 141 145 151 176 178 185 188 193-195 212-213 217",
        "2a00::/12",
    ),
    gettext_noop("Latin America"): ("177 179 181 186-187 189-191 200-201", "2800::/12"),
    gettext_noop("North America"): (
        "3-4 6-9 11-13 15-24 26 28-30 32-35 38 40 44-45 47-48 50 52 54-56 63-76 96-100 104 107-108 128-132"
        " 134-140 142-144 146-149 152 155-162 164-170 172-174 184 192 198-199 204-209 214-216",
        "2600::/12",
    ),
}


def sample_address(network: Network, number: int) -> str:
    """An address of a network."""
    return str(network[number % min(network.num_addresses, 2**16)])


def origin_name(origin: str) -> str:
    """The name of an origin for the page."""
    if not origin:
        return gettext("Unknown")
    return gettext(COUNTRIES.get(origin, origin))


@functools.lru_cache(10_000)
def origin_of(address: str) -> str:
    """ISO code of the country, else the region, else "". Raises ValueError for an invalid address."""
    parsed = ipaddress.ip_address(address)
    for network, country in SAMPLE_NETWORKS.items():
        if parsed in network:
            return country
    return _database()(address) or _find_region(parsed)


@functools.cache
def _database() -> Callable[[str], str]:
    try:
        return Countries()
    except ConfigurationError as error:
        logger.info("The countries of addresses are not available, their regions are used: %s", error)
        return lambda _: ""


def _find_region(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    if address.is_private:
        return ""
    if isinstance(address, ipaddress.IPv4Address):
        return _regions_of_first_bytes().get(address.packed[0], "")
    networks = ((region, ipaddress.ip_network(network)) for region, (_, network) in REGIONS.items())
    return next((region for region, network in networks if address in network), "")


@functools.cache
def _regions_of_first_bytes() -> dict[int, str]:
    found: dict[int, str] = {}
    for region, (ranges, _) in REGIONS.items():
        for one in ranges.split():
            first, _, last = one.partition("-")
            found |= dict.fromkeys(range(int(first), int(last or first) + 1), region)
    return found
