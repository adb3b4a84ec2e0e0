"""What requests are counted by: the user, the address of the client, a header, a field, or the site's own."""

from __future__ import annotations

import functools
import hashlib
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, cast

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.http import HttpRequest, UnreadablePostError

from .. import conf
from ..core.encoding import name as checked_name
from ..errors import ConfigurationError, InvalidArgument
from ..services.directories.folding import fold

logger = logging.getLogger(__name__)

Address = IPv4Address | IPv6Address
#: see `rate_limit`
Key = str | Callable[[HttpRequest], str | None] | Sequence[str | Callable[[HttpRequest], str | None]]
Part = Callable[[HttpRequest, Any], str | None]

#: bits of an IPv6 address that a provider gives a customer: the rest is chosen by the client
IPV6_PREFIX = 64
#: IPv6 addresses that stand for an IPv4 address, in their last 32 bits (RFC 6052)
NAT64 = IPv6Network("64:ff9b::/96")
#: characters of a submitted value above which it is not normalized: that takes quadratic time
MAX_NORMALIZED = 1000
#: submitted values that are stored as they are, such as names of users; others are stored as a digest
_READABLE = re.compile(r"[\w.@+-]{1,64}")
#: "1.2.3.4:5678" and "[2001:db8::1]:5678", as some proxies write
_WITH_PORT = re.compile(r"\[([^\]]+)\](?::\d+)?|(\d+\.\d+\.\d+\.\d+):\d+", re.ASCII)
#: whether a REMOTE_ADDR that is no address was logged
_is_reported = False


class RequestKey:
    """What requests are counted by. Raises TypeError or InvalidArgument for what can't be a key."""

    def __init__(self, key: Key) -> None:
        specs = [key] if isinstance(key, str) or callable(key) else list(key)
        if not specs:
            raise InvalidArgument("key is empty: name what requests are counted by.")
        self._parts = [_part(spec) for spec in specs]
        kinds = {spec.partition(":")[0] for spec in specs if isinstance(spec, str)}
        #: whether it depends on the user of the request
        self.uses_user = bool(kinds & {"user", "user_or_ip", "anonymous"})
        #: whether it can depend on the address of the client
        self.uses_address = bool(kinds - {"user"})
        self._reads_body = "post" in kinds

    def of(self, request: HttpRequest, user: Any) -> str | None:
        """The key of a request, as `RateLimit` takes it; None if the request is not counted."""
        parts = [part(request, user) for part in self._parts]
        if any(part is None for part in parts):
            return None
        texts = cast("list[str]", parts)
        if len(texts) > 1:
            return _storable("|".join(digest(text) if "|" in text else text for text in texts))
        return _storable(texts[0])

    async def aof(self, request: HttpRequest, user: Any) -> str | None:
        """An async version of `of`: a thread parses the body, which can take long."""
        if self._reads_body and request.method == "POST" and not _is_parsed(request):
            await sync_to_async(_submitted_data)(request)
        return self.of(request, user)


def _part(spec: str | Callable[[HttpRequest], str | None]) -> Part:
    if callable(spec):
        if iscoroutinefunction(spec):
            raise TypeError("key is an async function: use a plain one.")
        return functools.partial(_called, spec)
    if not isinstance(spec, str):
        raise TypeError(f"key must be a str, a function, or several in a list, not {type(spec).__name__}.")
    kind, _, name = spec.partition(":")
    if name and kind in _SUBMITTED:
        return functools.partial(_submitted, kind, name)
    if spec in _KINDS:
        return _KINDS[spec]
    raise InvalidArgument(
        f"key must be {', '.join(map(repr, _KINDS))}, 'header:NAME', 'post:FIELD', 'get:PARAMETER' or a "
        f"function, not {spec!r}."
    )


def _called(function: Callable[[HttpRequest], str | None], request: HttpRequest, user: Any) -> str | None:
    text = function(request)
    if text is not None and not isinstance(text, str):
        raise TypeError(
            f"The key function {function!r} must return a str or None, not {type(text).__name__}."
        )
    return text


def _user(request: HttpRequest, user: Any) -> str | None:
    return f"user:{user.pk}" if getattr(user, "is_authenticated", False) else None


def _anonymous(request: HttpRequest, user: Any) -> str | None:
    return None if getattr(user, "is_authenticated", False) else _ip(request, user)


def _user_or_ip(request: HttpRequest, user: Any) -> str | None:
    return _user(request, user) or _ip(request, user)


def _ip(request: HttpRequest, user: Any) -> str:
    return f"ip:{client_address(request)}"


def _header(request: HttpRequest, name: str) -> str | None:
    value = request.headers.get(name, "").strip()
    # often a secret
    return digest(value) if value else None


def _post(request: HttpRequest, name: str) -> str | None:
    data = _submitted_data(request)
    return _field(data.get(name) if isinstance(data, Mapping) else None)


def _submitted_data(request: HttpRequest) -> object:
    """The fields of the body; None if the client is gone. A body that Django refuses raises its error, which
    is answered with 400: whatever the view could read is counted."""
    try:
        # a request of Django REST framework has parsed JSON, too
        return getattr(request, "data", None) or request.POST
    except UnreadablePostError:
        return None


def _is_parsed(request: HttpRequest) -> bool:
    """Whether the view, or a middleware such as that against CSRF, has read `request.POST`."""
    return hasattr(request, "_post")


def _get(request: HttpRequest, name: str) -> str | None:
    return _field(request.GET.get(name))


def _field(value: object) -> str | None:
    """A field as people compare it: "Ann " is "ann"."""
    text = "" if value is None else str(value).strip()  # first, as form fields do
    text = fold(text).strip() if len(text) <= MAX_NORMALIZED else text.casefold()
    if not text:
        return None
    return text if _READABLE.fullmatch(text) else digest(text)


_KINDS: dict[str, Part] = {"user_or_ip": _user_or_ip, "user": _user, "ip": _ip, "anonymous": _anonymous}
_SUBMITTED: dict[str, Callable[[HttpRequest, str], str | None]] = {
    "header": _header,
    "post": _post,
    "get": _get,
}


def _submitted(kind: str, name: str, request: HttpRequest, user: Any) -> str:
    """A value that the client has sent. Who sends none is counted by address: leaving it out is no way around
    a limit, and uses up nobody else's."""
    value = _SUBMITTED[kind](request, name)
    return _ip(request, user) if value is None else f"{kind}:{name}:{value}"


def _storable(text: str) -> str:
    """`text` if it is a valid name, else a digest."""
    try:
        return checked_name(text, "key")
    except InvalidArgument:
        return digest(text)


def digest(text: str) -> str:
    """Stands for a text that is too long, secret or invalid as a name."""
    return "#" + hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def client_address(request: HttpRequest) -> str:
    """The address that the client of a request is counted by: of IPv6, the first 64 bits.

    It is REMOTE_ADDR. If that is one of TRUSTED_PROXIES, it is the last address in X-Forwarded-For that is
    none of them: what is before it can be made up by the client. "unknown" if there is none.
    """
    trusted = _trusted(tuple(conf.current().TRUSTED_PROXIES))
    peer = request.META.get("REMOTE_ADDR") or ""
    found = _parse(peer)
    if found is None and not (peer == "" and trusted.unix):
        _report_unknown(peer)
        return "unknown"
    hops = reversed(request.META.get("HTTP_X_FORWARDED_FOR", "").split(","))
    while found is None or found in trusted:
        hop = _parse(next(hops, ""))
        if hop is None:  # the first proxy, or nothing that a proxy writes
            break
        found = hop
    return "unknown" if found is None else _counted(found)


def address_key(text: str | None) -> str | None:
    """An address as text, such as that in a header of your provider, as `client_address` counts it; None if
    it is none.

    >>> address_key("203.0.113.9"), address_key("2001:db8::1"), address_key(None)
    ('203.0.113.9', '2001:db8::/64', None)
    """
    address = _parse(text or "")
    return None if address is None else _counted(address)


def _counted(address: Address) -> str:
    if isinstance(address, IPv6Address) and address in NAT64:
        return str(IPv4Address(address.packed[-4:]))
    if isinstance(address, IPv6Address):
        return str(ip_network((address.packed, IPV6_PREFIX), strict=False))
    return str(address)


def _parse(text: str) -> Address | None:
    text = text.strip()
    with_port = _WITH_PORT.fullmatch(text)
    try:
        address = ip_address(with_port[1] or with_port[2] if with_port else text)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


class _Trusted:
    """The proxies that are trusted to write X-Forwarded-For."""

    def __init__(self, entries: Sequence[str]) -> None:
        #: whether the peer of a Unix socket is trusted, which has no address
        self.unix = conf.UNIX in entries
        self._networks = [conf.proxy_network(entry) for entry in entries if entry != conf.UNIX]

    def __contains__(self, address: Address) -> bool:
        return any(address in network for network in self._networks)


@functools.lru_cache(maxsize=16)
def _trusted(entries: tuple[str, ...]) -> _Trusted:
    try:
        return _Trusted(entries)
    except ValueError as error:
        raise ConfigurationError(f"TRUSTED_PROXIES in {conf.NAME} is invalid: {error}") from None


def _report_unknown(peer: str) -> None:
    """Log it once: clients may be able to make up others."""
    global _is_reported
    if _is_reported:
        return
    _is_reported = True
    logger.warning(
        "REMOTE_ADDR is %.100r, which is no address: all such requests count as one client. If the server "
        'listens on a Unix socket behind a proxy, add "unix" to TRUSTED_PROXIES.',
        peer,
    )
