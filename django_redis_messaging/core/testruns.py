"""Which server a run of tests uses: never that of the site.

During a run of tests, all calls of this app go to a private server, which ends with the run; or, with
{"SERVER": "configured"} in the setting TEST, to the servers of CACHES, with a prefix of the run's own, whose
keys are removed at its end. An alias whose entry names servers that the site's settings don't know stays as
it is: a test may start its own.

The pytest plugin marks its whole session as a run. Elsewhere a run begins with Django's test environment
(`setup_test_environment()`, which each test runner calls). Django sends no signal then, so `current()` checks
it: whenever an object is created, a connection is opened, or, if Django's module of test utilities is loaded,
a client is looked up. Sites don't load it, so there the last costs the look-up of a name in a dict.

A process that has run tests never uses the servers of the site again: a thread that a test has left could
still call this app. Processes that run tests in parallel have a run each. Other processes that a test starts
use the same run: an environment variable names the file that describes it.

The functions at the end read entries of CACHES, which may contain anything.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self, cast

from django.conf import settings
from django.dispatch import Signal
from django.utils.module_loading import import_string
from redis.connection import parse_url

from .. import conf
from ..errors import ConfigurationError
from . import after_fork

if TYPE_CHECKING:
    from ..devserver.server import EmbeddedServer

#: Django's module with the test environment; test runners load it, sites don't
UTILS = "django.test.utils"
#: the module of pytest's option
PLUGIN = "django_redis_messaging.pytest_plugin"
#: environment variable with the path of the file that describes the run, for processes that a test starts
VARIABLE = "REDIS_MESSAGING_TEST_RUN"
#: values of SERVER in the setting TEST
PRIVATE, CONFIGURED = "private", "configured"
#: what the setting TEST must be
TEST_FORM = f'{{"SERVER": "{PRIVATE}"}} or {{"SERVER": "{CONFIGURED}"}}'
#: databases of the private server, of which each alias uses one
DATABASES = 256
#: the backend of the entries that this app can use
BACKEND = "django_redis.cache.RedisCache"
Entry = dict[str, Any]
#: host or path, port, number of the database
Database = tuple[str, int, int]
#: host or path, port
Server = tuple[str, int]
#: the form of the file that describes a run
EMPTY_STATE: Mapping[str, Any] = {
    "pid": 0,
    "url": "",
    "error": "",
    "root": "",
    "prefix": None,
    "databases": {},
    "servers": (),
}
#: sent after a run has begun or ended: clients made before must not be used any more
changed = Signal()
#: sent at the end of a run on the servers of CACHES, whose keys have to be removed; sender: the run
ending = Signal()


def current() -> Run | None:
    """The run of tests to which this process belongs; None outside of tests. Begins the run if the test
    environment was set up since."""
    if _is_outdated():
        with _lock:
            if _is_outdated():
                if _changing:  # a signal handler, or a destructor
                    raise RuntimeError("The run of tests is being started: call again later.")
                _replace(Run.begin)  # in a process of a parallel run, the old run is that of its parent
    return _run


def notice(*_: object, **__: object) -> None:
    """Begin the run if the test environment was set up, so that processes that a test starts take part in it,
    even if it has made no call before."""
    if UTILS in sys.modules:
        current()


def is_active() -> bool:
    """Whether this process runs tests: a session of pytest, or Django's test environment is set up."""
    if getattr(sys.modules.get(PLUGIN), "is_running", False):
        return True
    utils: Any = sys.modules.get(UTILS)  # another thread may be importing it
    # Django's own criterion, in setup_test_environment()
    return hasattr(getattr(utils, "_TestState", None), "saved_data")


def worker() -> int:
    """The number of this process among those in which Django runs tests in parallel, from 1; else 0."""
    runner: Any = sys.modules.get("django.test.runner")
    return 0 if runner is None else runner._worker_id


def prefix_in_use(configured: str) -> str:
    """The prefix in use if the settings say `configured`."""
    if _run is None and UTILS not in sys.modules:  # no tests
        return configured
    run = current()
    return configured if run is None else run.prefix(configured)


def end() -> None:
    """End the run of this process, if it began one. From now on, calls raise ConfigurationError, unless the
    process belongs to an outer run; if the test environment is still set up, they begin another run."""
    atexit.unregister(end)
    with _lock:
        if _run is not None and _run.is_own and not _run.has_ended:
            _replace(lambda old: _inherited or old)


class Run:
    """What a run of tests uses instead of the servers of the site."""

    def __init__(self, state: Mapping[str, Any], *, file: str = "", is_own: bool = False) -> None:
        #: the file that describes the run
        self.file = file
        #: begun by this process, or by the one from which it was forked
        self.is_own = is_own
        self.has_ended = False
        self.worker = worker()
        #: the process that began the run, and ends it
        self.pid: int = state["pid"]
        #: LOCATION of the private server
        self.url: str = state["url"]
        #: why no call is possible
        self.error: str = state["error"]
        #: with the servers of CACHES: what all prefixes begin with
        self.root: str = state["root"]
        self.prefix = Prefix(self, state["prefix"])
        self.server: EmbeddedServer | None = None
        self._databases: dict[str, int] = dict(state["databases"])
        self._servers: set[Server] = {(host, port) for host, port in state["servers"]}
        self._variable_before: str | None = None

    @classmethod
    def begin(cls, outer: Run | None) -> Self:
        """Begin a run in this process; `outer`: the one of the process that started it. An error is raised
        when a call is made: tests without calls need no server."""
        descriptor, file = tempfile.mkstemp(prefix="messaging-run-", suffix=".json")
        os.close(descriptor)
        self = cls({**EMPTY_STATE, "pid": os.getpid()}, file=file, is_own=True)
        self._variable_before = os.environ.get(VARIABLE)
        entries = of_site("CACHES")
        named = {server for entry in entries.values() for server in servers_of(entry)}
        self._servers = named - {("", 0)}  # of other backends, without a LOCATION
        try:
            for alias in (conf.alias(), *entries):
                self._databases.setdefault(alias, len(self._databases))
            if _chosen() == CONFIGURED:
                self.root = self.prefix.inside = _new_name(outer.root if outer else "")
            else:
                self._start_server()
        except (ConfigurationError, OSError) as error:
            self.error = str(error)
        self.publish()
        os.environ[VARIABLE] = file
        atexit.register(end)
        return self

    def _start_server(self) -> None:
        from ..devserver.server import EmbeddedServer  # only tests need it

        self.server = EmbeddedServer(options={"databases": DATABASES})
        try:
            self.server.start()
        except BaseException as error:
            self.server.close()
            if isinstance(error, ConfigurationError | OSError):
                raise ConfigurationError(
                    f"Tests use a private server, which could not be started. {error} Or set "
                    f"{conf.NAME}['TEST'] = {{'SERVER': '{CONFIGURED}'}}: then they use the servers of "
                    "CACHES, with a prefix of their own."
                ) from error
            raise
        self.url = self.server.url

    def end(self) -> None:
        """End a run that this process began: stop the private server, or remove the keys of the run."""
        if not self.is_own or self.has_ended or self.pid != os.getpid():
            return
        if self.root:
            ending.send(self)
        if self.server is not None:
            self.server.close()
        self.has_ended = True
        with suppress(FileNotFoundError):
            os.unlink(self.file)
        if self._variable_before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = self._variable_before

    @property
    def has_site(self) -> bool:
        """Whether the site of this process is the one whose tests run: a test may start another site, with a
        server of its own."""
        if self.is_own:
            return True
        entry = settings.CACHES.get(conf.alias())
        return self.is_of_site(entry) or self.serves(entry)

    def serves(self, entry: object) -> bool:
        """Whether an entry of CACHES leads to the private server."""
        return bool(self.url) and servers_of(entry) == servers_of({"LOCATION": self.url})

    @property
    def aliases(self) -> list[str]:
        """The aliases of the site that this app can use."""
        return [alias for alias, entry in of_site("CACHES").items() if is_django_redis(entry)]

    def is_of_site(self, entry: object) -> bool:
        """Whether an entry of CACHES leads to a server of the site, as far as can be known."""
        return is_django_redis(entry) and not self._servers.isdisjoint(servers_of(entry))

    def location(self, alias: str) -> str | None:
        """Where an alias leads instead of the servers of its entry; None: they are used.

        Raises ConfigurationError if the entry leads to the site and the run has no server, or has ended.
        """
        self.check()
        if not self.is_of_site(settings.CACHES.get(alias)):
            return None
        if self.error:
            raise ConfigurationError(self.error)
        return self.database(alias) if self.url else None

    def check(self) -> None:
        """Raise ConfigurationError if the run has ended."""
        if self.is_own:
            if self.has_ended:
                raise ConfigurationError(
                    "The tests of this process have ended; it can't use the servers of the site any more."
                )
        elif not os.path.exists(self.file):
            raise ConfigurationError(
                f"The environment variable {VARIABLE} names a run of tests that has ended: unset it."
            )

    def database(self, alias: str) -> str:
        """The LOCATION of an alias's database on the private server."""
        if alias not in self._databases:
            with _lock:
                self._databases.setdefault(alias, len(self._databases))
            self.publish()
        return f"{self.url.partition('?')[0]}?db={self._databases[alias]}"

    def is_private(self, alias: str, entry: Mapping[str, Any]) -> bool:
        """Whether an entry of CACHES leads to the alias's database on the private server."""
        return alias in self._databases and entry.get("LOCATION") == self.database(alias)

    def new_prefix(self) -> str:
        """A prefix for one test."""
        return _new_name(self.root)

    def refuse_foreign(self, keys: Iterable[str]) -> None:
        """Raise ConfigurationError if a key is not one of the run, which uses the servers of the site."""
        for key in keys:
            if not key.startswith(f"{self.root}:"):
                raise ConfigurationError(
                    f"A test must not use the key {key!r} of the site. Objects that are made before the test "
                    "environment is set up, such as those at the top of a module, have the site's prefix: "
                    f"make them in a function, or set {conf.NAME}['TEST'] = {{'SERVER': '{PRIVATE}'}}."
                )

    def publish(self) -> None:
        """Describe the run to processes that are started from now on."""
        if not self.is_own or self.pid != os.getpid():
            return
        state = {
            "pid": self.pid,
            "url": self.url,
            "error": self.error,
            "root": self.root,
            "prefix": self.prefix.inside,
            "databases": self._databases,
            "servers": sorted(self._servers),
        }
        new = f"{self.file}.{threading.get_ident()}"
        with open(new, "w", encoding="utf-8") as file:
            json.dump(state, file)
        os.replace(new, self.file)  # a process that starts now reads either state, and not half of one


class Prefix:
    """The beginning of all keys in a run of tests.

    `inside` replaces the site's PREFIX and the default. Any other PREFIX, such as that of a tenant, is
    appended to it, so that tenants stay distinct. None: the prefixes stay as they are.
    """

    def __init__(self, run: Run, inside: str | None) -> None:
        self.inside = inside
        self._run = run

    def __call__(self, configured: str) -> str:
        """The prefix in use if the settings say `configured`."""
        inside = self.inside
        # an empty or otherwise invalid one is rejected as it is without tests
        if inside is None or not isinstance(configured, str) or not configured or not self._run.has_site:
            return configured
        if configured in (conf.Settings().PREFIX, of_site(conf.NAME).get("PREFIX")):
            return inside
        return configured if configured.startswith(inside) else f"{inside}:{configured}"

    @contextmanager
    def instead(self, prefix: str) -> Iterator[None]:
        """Use `prefix` within the block, in processes that it starts, too."""
        before, self.inside = self.inside, prefix
        self._run.publish()
        try:
            yield
        finally:
            self.inside = before
            self._run.publish()

    def problems(self) -> list[str]:
        """A message if this prefix isn't in use."""
        if conf.prefix_hook is prefix_in_use and self.inside is not None:
            return []
        return ["The test runs without its prefix, since conf.prefix_hook was replaced."]


def _is_outdated() -> bool:
    run = _run
    if run is None or not run.is_own or run.has_ended or run.worker != worker():
        return is_active()
    return False


def _replace(make: Callable[[Run | None], Run | None]) -> None:
    """End the run, and make another one, or none."""
    global _run, _changing
    _changing = True
    try:
        if _run is not None:
            _run.end()
        _run = make(_run)
        changed.send(None)
    finally:
        _changing = False


def _chosen() -> str:
    """PRIVATE or CONFIGURED; raises ConfigurationError."""
    option: str = getattr(sys.modules.get(PLUGIN), "chosen", "")
    if option:
        return option
    setting = of_site(conf.NAME).get("TEST")
    if not is_valid_test(setting):
        raise ConfigurationError(f"{conf.NAME}['TEST'] must be {TEST_FORM}, not {setting!r}.")
    return PRIVATE if setting is None else str(setting.get("SERVER", PRIVATE))


def is_valid_test(setting: Any) -> bool:
    """Whether the setting TEST has the required form.

    >>> is_valid_test({"SERVER": "private"}), is_valid_test({"SERVER": "mine"})
    (True, False)
    >>> is_valid_test({"SERVR": "private"})
    False
    """
    if setting is None:
        return True
    return isinstance(setting, Mapping) and dict(setting) in ({}, {"SERVER": PRIVATE}, {"SERVER": CONFIGURED})


def _new_name(root: str) -> str:
    name = f"test:{uuid.uuid4().hex[:12]}"
    return f"{root}:{name}" if root else name


def _read_variable() -> Run | None:
    """The run that the environment variable names."""
    path = os.environ.get(VARIABLE)
    if not path:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            return Run(json.load(file), file=path)
    except FileNotFoundError:  # each call raises an error
        return Run(EMPTY_STATE, file=path)
    except (LookupError, OSError, TypeError, ValueError) as error:
        raise ConfigurationError(f"The environment variable {VARIABLE} is not valid: unset it.") from error


def _refresh_forked() -> None:
    """A forked child holds none of its parent's locks. The parent may be a server of forks, which has read
    the state of an earlier test."""
    global _lock, _changing, _inherited, _run
    _lock, _changing = threading.RLock(), False
    if _inherited is not None:
        before, _inherited = _inherited, _read_variable()
        _run = _inherited if _run is before else _run


def layers(name: str) -> Iterator[dict[str, Any]]:
    """A setting in each override in effect, the latest first, and at last in the settings of the site."""
    found: Any = settings.CACHES  # this loads the settings
    holder: Any = vars(settings)["_wrapped"]
    while holder is not None and not isinstance(holder, ModuleType):  # Django's own defaults
        found = vars(holder).get(name)
        if isinstance(found, dict):
            yield found
        holder = vars(holder).get("default_settings")


def of_site(name: str) -> dict[str, Any]:
    """A setting below all overrides."""
    found: dict[str, Any] = next(reversed([*layers(name)]), getattr(settings, name, {}))
    return found if isinstance(found, dict) else {}


def is_django_redis(entry: object) -> bool:
    """Whether an entry has the backend of django-redis."""
    return is_kind_of(mapping(entry).get("BACKEND"), BACKEND)


def servers_of(entry: object) -> set[Server]:
    """The servers that an entry names: its Sentinels, if there are any, since its LOCATION is then the name
    of a service. A LOCATION that only the entry's own factory understands counts as the name of a server."""
    sentinels = mapping(mapping(entry).get("OPTIONS")).get("SENTINELS")
    if not sentinels or not isinstance(sentinels, list | tuple):
        named = {(host, port) for host, port, _ in databases(entry)}
        return named or {(str(mapping(entry).get("LOCATION", "")), 0)}
    pairs = [one for one in sentinels if isinstance(one, list | tuple) and len(one) == 2]
    found = [_database({"host": host, "port": port}) for host, port in pairs]
    return {database[:2] for database in found if database is not None}


def databases(entry: object) -> list[Database]:
    """The Redis databases that an entry of any backend uses."""
    found = [_database(options) for options in connections(entry)]
    return [database for database in found if database is not None]


def connections(entry: object) -> list[dict[str, Any]]:
    """The connection options of an entry of any backend, for each of its locations that is a Redis URL."""
    return [options for _, options in urls_of(entry)]


def urls_of(entry: object) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each location of an entry that is a Redis URL, with its connection options."""
    options = mapping(mapping(entry).get("OPTIONS"))
    common = {**options, **mapping(options.get("CONNECTION_POOL_KWARGS"))}
    common.setdefault("socket_timeout", options.get("SOCKET_TIMEOUT"))
    for url in _locations(mapping(entry).get("LOCATION")):
        own = _parse(url)
        if own is not None:
            yield url, {**common, **own}


def mapping(value: object) -> dict[Any, Any]:
    """`value` if it is a dict, else an empty one."""
    return value if isinstance(value, dict) else {}


def _locations(given: object) -> list[str]:
    """The URLs in a LOCATION, separated by commas or semicolons, or in a collection."""
    if isinstance(given, str):
        given = given.replace(";", ",").split(",")
    if not isinstance(given, list | tuple | set | frozenset):
        return []  # such as a Path, of a file-based cache
    return [url.strip() for url in given if isinstance(url, str)]


def _parse(url: str) -> dict[str, Any] | None:
    """The options in a URL; None if it is no Redis URL: of locmem, a file, memcached."""
    try:
        return cast("dict[str, Any]", cast("Any", parse_url)(url))
    except Exception:
        return None


def _database(options: dict[str, Any]) -> Database | None:
    """The database of a connection; None if the options are not valid."""
    path, host = options.get("path"), options.get("host") or "localhost"
    try:
        number = int(options.get("db") or 0)
        if path:
            return str(path), 0, number
        host = "localhost" if host in {"127.0.0.1", "::1"} else str(host).lower()
        return host, int(options.get("port") or 6379), number
    except Exception:
        return None


def is_kind_of(path: object, base: str) -> bool:
    """Whether a dotted path names `base` or a subclass of it."""
    if not path:
        return False
    try:
        kind = import_string(path) if isinstance(path, str) else path
        return isinstance(kind, type) and issubclass(kind, import_string(base))
    except Exception:  # whatever another module raises
        return False


_lock = threading.RLock()
_changing = False
#: the run of the process that started this one
_inherited = _read_variable()
_run = _inherited
after_fork(_refresh_forked)
conf.prefix_hook = prefix_in_use
if PLUGIN in sys.modules:
    import django.test.utils  # noqa: F401  (from now on, each look-up of a client asks for the run)
