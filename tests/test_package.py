"""Properties of the whole package: public names, layers and scripts."""

from __future__ import annotations

import ast
import doctest
import functools
import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.apps import apps
from django.core.management import call_command
from hatchling.builders.wheel import WheelBuilder

import django_redis_messaging
from django_redis_messaging.core import commands
from django_redis_messaging.core.operations import Service
from django_redis_messaging.services.aggregates.aggregator import AggregateKeys
from django_redis_messaging.services.broadcasts.broadcast import BroadcastKeys
from django_redis_messaging.services.chats.keys import ChatKeys
from django_redis_messaging.services.directories.directory import DirectoryKeys
from django_redis_messaging.services.files.keys import FileChannelKeys
from django_redis_messaging.services.mailboxes.mailbox import MailboxKeys
from django_redis_messaging.services.users.keys import UserKeys

PACKAGE = Path(str(django_redis_messaging.__file__)).parent
ROOT = Path(__file__).parents[1]
NAME = PACKAGE.name
PUBLIC: list[str] = django_redis_messaging.__all__
SERVICES: list[type[Service]] = [
    kind
    for kind in map(vars(django_redis_messaging).__getitem__, PUBLIC)
    if inspect.isclass(kind) and issubclass(kind, Service)
]


@functools.cache
def modules(*folders: str) -> dict[str, Path]:
    """Dotted name → file of the modules of the package, or of some of its folders."""
    places = [PACKAGE / folder for folder in folders] or [PACKAGE]
    paths = [path for place in places for path in sorted(place.rglob("*.py"))]
    dotted = {".".join((NAME, *path.relative_to(PACKAGE).with_suffix("").parts)): path for path in paths}
    return {name.removesuffix(".__init__"): path for name, path in dotted.items()}


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


#: run synchronous code of Django in the thread where asgiref runs it, as its database connections need
RUN_CODE_OF_DJANGO = {
    "django_redis_messaging.middleware",
    "django_redis_messaging.services.jobs.threads",
    "django_redis_messaging.web.identity",
    "django_redis_messaging.web.request_keys",
    "django_redis_messaging.web.stream_access",
    "django_redis_messaging.web.live",
}


#: modules of Python that other systems than POSIX don't have
POSIX_MODULES = ("fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty")
#: functions of the module os that other systems don't have, and that are called by imports
POSIX_FUNCTIONS = ("fork", "register_at_fork")
#: modules for the tests of sites
TESTING = ("pytest_plugin", "testing")


def run_python(program: str, **environment: str) -> None:
    """Run a program in another process; it must not fail."""
    inherited = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={**inherited, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.versions
class TestImport:
    def test_import_needs_no_settings_and_no_network(self) -> None:
        """Each module of keys can be imported first."""
        outside = [f"{NAME}.{name}" for name in ("conf", *TESTING)]
        wanted = [NAME, *outside, *modules("core", "services", "checks")]
        keys = [name for name in modules("services") if name.endswith(".keys")]
        run_python(f"""
import importlib, os, socket
def refuse(*args): raise AssertionError("an import opens a connection")
socket.socket.connect = socket.create_connection = refuse
for name in {keys!r}:
    if os.fork() == 0:
        importlib.import_module(name)
        os._exit(0)
    assert os.wait()[1] == 0, name
for name in {wanted!r}:
    importlib.import_module(name)
from django.conf import settings
assert not settings.configured, "an import reads the settings"
""")

    def test_only_the_servers_for_development_need_posix(self) -> None:
        """Nor does any other module import these servers, unless a function of it is called."""
        development = set(modules("devserver"))
        program = f"""
import asyncio, getpass, importlib, multiprocessing, os, subprocess, sys, django, pytest, redis.asyncio
for name in {POSIX_MODULES!r}:
    sys.modules[name] = None  # from now on, importing it raises ModuleNotFoundError
for name in {POSIX_FUNCTIONS!r}:
    delattr(os, name)
django.setup()
for name in {[*set(modules()) - development]!r}:
    importlib.import_module(name)
assert not {development!r} & set(sys.modules), "a module imports a server for development"
try:
    import {NAME}.devserver.server
except ModuleNotFoundError:
    pass
else:
    raise AssertionError("the modules are not blocked")
"""
        run_python(program, DJANGO_SETTINGS_MODULE="tests.settings")

    def test_pickle_and_threads_for_waiting_are_not_used(self) -> None:
        for dotted, path in modules().items():
            names = {node.id for node in ast.walk(tree(path)) if isinstance(node, ast.Name)}
            allowed = {"sync_to_async"} if dotted in RUN_CODE_OF_DJANGO else set()
            assert not names & ({"sync_to_async", "pickle"} - allowed), dotted
            imports = {name.partition(".")[0] for name in imported(dotted, path)}
            assert not imports & {"pickle", "fakeredis"}, dotted


@pytest.mark.versions
class TestPublicNames:
    def test_every_imported_name_is_public_and_listed_once(self) -> None:
        found = {
            name
            for name, value in vars(django_redis_messaging).items()
            if not name.startswith("_") and (name in PUBLIC or not inspect.ismodule(value))
        }
        assert sorted(found) == sorted(PUBLIC)
        assert set(PUBLIC) < set(dir(django_redis_messaging))
        assert not hasattr(django_redis_messaging, "Cat")

    def test_type_checkers_know_the_public_names(self) -> None:
        """For them, a __getattr__ would give a package every name."""
        code = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
        assert not [one for one in code.body if isinstance(one, ast.FunctionDef)]

    def test_names_are_grouped_under_headings(self) -> None:
        source = (PACKAGE / "api.py").read_text(encoding="utf-8")
        listed = source[source.index("__all__ = [") :].splitlines()[1:]
        assert listed[0].strip().startswith("# ")
        assert sum(line.strip().startswith("# ") for line in listed) >= 3

    def test_every_name_has_a_docstring(self) -> None:
        described = {name: getattr(django_redis_messaging, name) for name in PUBLIC}
        for kind in SERVICES:
            described |= {f"{kind.__name__}.{name}": member for name, member in methods(kind)}
        assert [name for name, value in described.items() if not inspect.getdoc(value)] == []


def examples() -> list[doctest.DocTest]:
    """The examples of all docstrings. Async versions share those of their operation and are left out."""
    found: dict[tuple[str | None, int | None], doctest.DocTest] = {}
    for dotted, path in modules().items():
        if ">>> " in path.read_text(encoding="utf-8"):
            module = importlib.import_module(dotted)
            for test in doctest.DocTestFinder(exclude_empty=True).find(module):
                found.setdefault((test.filename, test.lineno), test)
    return [test for test in found.values() if test.examples]


@pytest.mark.versions
@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name.removeprefix(f"{NAME}."))
def test_examples_of_docstrings_run(example: doctest.DocTest) -> None:
    example.globs |= {name: getattr(django_redis_messaging, name) for name in PUBLIC}
    output = StringIO()
    failed, _ = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=output.write)
    assert not failed, output.getvalue()


#: links and pictures of Markdown and HTML that lead to no other site
RELATIVE = re.compile(r"""\]\((?!https?:)[^)]*\)|\b(?:src|srcset|href)="(?!https?:)[^"]*\"""")


class TestDescription:
    """What PyPI shows: README.md, without the other files of the repository."""

    def describe(self, folder: Path, urls: str) -> str:
        """The description that the project has with these [project.urls]."""
        for name in ("hatch_build.py", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, folder)
        project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        project = re.sub(r"^\[project\.urls\]\n(?:\w.*\n)*", "", project, flags=re.MULTILINE)
        (folder / "pyproject.toml").write_text(f"{project}\n[project.urls]\n{urls}\n", encoding="utf-8")
        return str(WheelBuilder(str(folder)).metadata.core.readme)

    def test_relative_links_become_text(self, tmp_path: Path) -> None:
        assert len(RELATIVE.findall((ROOT / "README.md").read_text(encoding="utf-8"))) > 20
        described = self.describe(tmp_path, "")
        assert RELATIVE.findall(described) == []
        for text in ("# django-redis-messaging\n", "The tutorial builds", "](https:", "urlpatterns += ["):
            assert text in described

    def test_links_lead_to_the_address_of_the_project(self, tmp_path: Path) -> None:
        source = "https://github.com/example/shop"
        described = self.describe(tmp_path, f'Source = "{source}/"')
        assert RELATIVE.findall(described) == []
        assert f"[tutorial]({source}/blob/HEAD/docs/tutorial.md)" in described
        assert f"]({source}#guarantees)" in described
        assert f'src="{source}/raw/HEAD/docs/screenshot.png"' in described
        assert f'srcset="{source}/raw/HEAD/docs/screenshot-dark.png"' in described


def methods(kind: type) -> list[tuple[str, Any]]:
    """The public methods of a class: instance, class and static methods."""
    return [
        (name, member)
        for name, member in inspect.getmembers(kind, inspect.isroutine)
        if not name.startswith("_")
    ]


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    return [
        (parameter.name, parameter.kind, parameter.default)
        for parameter in inspect.signature(function).parameters.values()
    ]


#: functions that compute on what they are given
WITHOUT_IO = {"gunzip", "iter_lines", "unzstd"}


def is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


@pytest.mark.versions
class TestAsyncVersions:
    """Every operation has a sync and an async version, which differ only in the prefix of the name."""

    def test_there_are_services(self) -> None:
        assert {"Chat", "Inbox"} <= {kind.__name__ for kind in SERVICES}

    @pytest.mark.parametrize("kind", SERVICES)
    def test_each_operation_has_one(self, kind: type) -> None:
        assert inspect.signature(kind).parameters["using"].kind is inspect.Parameter.KEYWORD_ONLY
        found = dict(methods(kind))
        for name, method in found.items():
            if is_async(method):
                assert name[0] == "a", f"{name} is async"
                assert name[1:] in found, f"{name} has no sync version"
            else:
                assert f"a{name}" in found, f"{name} has no async version"
                assert is_async(found[f"a{name}"]), f"a{name} is not async"
                assert parameters(method) == parameters(found[f"a{name}"]), name

    def test_functions_of_the_services_have_async_versions(self) -> None:
        functions = {
            name: value
            for name in PUBLIC
            if inspect.isfunction(value := getattr(django_redis_messaging, name))
            and value.__module__.startswith(f"{NAME}.services")
            and name not in WITHOUT_IO
        }
        for name, function in functions.items():
            if is_async(function):
                assert name[1:] in functions, name
            else:
                assert parameters(functions[f"a{name}"]) == parameters(function), name


@functools.cache
def imported(dotted: str, path: Path, within: ast.AST | None = None) -> list[str]:
    """The dotted names of all imports of a module, or of a part of it, at any level."""
    package = dotted if path.name == "__init__.py" else dotted.rpartition(".")[0]
    found: list[str] = []
    for node in ast.walk(within or tree(path)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found += [f"{base}.{alias.name}" for alias in node.names]
    return found


def imported_modules(dotted: str, path: Path, within: ast.AST | None = None) -> set[str]:
    """The modules of the package that a module imports: `from .a import b` is `a.b` if that is a module."""
    known, names = modules(), imported(dotted, path, within)
    found = {name if name in known else name.rpartition(".")[0] for name in names}
    return {name for name in found if name in known} - {dotted}


def run_by_import(dotted: str, path: Path) -> set[str]:
    """The modules that Python runs for the imports of a module: for `a.b.c`, also `a` and `a.b`."""
    found = imported_modules(dotted, path)
    packages = {name[:at] for name in found for at, sign in enumerate(name) if sign == "."}
    return found | {one for one in packages - {NAME} if not f"{dotted}.".startswith(f"{one}.")}


def imported_by_functions(dotted: str, path: Path) -> set[str]:
    """The modules of the package that the functions of a module import when they are called."""
    functions = (
        one for one in ast.walk(tree(path)) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return {name for one in functions for name in imported_modules(dotted, path, one)}


def part_of(dotted: str) -> str:
    """The module or folder of the package that contains a module; of the package itself, `__init__`."""
    return [*dotted.split("."), "__init__"][1]


#: parts of the package, lowest first: a module imports only its own part and lower layers
LAYERS = (
    ("errors",),
    ("cluster", "conf", "signals"),
    ("core",),
    ("devserver", "handlers"),
    ("checks", "services"),
    ("tasks", "web"),
    ("surveys",),
    ("api",),
    ("__init__",),
    ("console",),
    ("admin", "context_processors", "forms", "middleware", "templatetags", "throttling", "urls"),
    ("debug_panel", "health", "metrics", "otel"),
    ("management", "testing"),
    ("pytest_plugin",),
    ("apps",),
)
#: modules of core, lowest first: a module imports only lower floors
FLOORS = (
    ("commands", "encoding", "testruns"),
    ("connection", "outcome"),
    ("topology",),
    ("pool",),
    ("clients",),
    ("operations",),
)
#: imports from above, with the reason
UPWARDS = {("core.testruns", "devserver.server"): "a run of tests starts a server; other processes never do"}
#: modules whose functions import modules of the package, with the reason
LAZY = {
    "admin": "the admin loads it in each process of a site",
    "apps": "Django loads it in each process of a site",
    "console.contents": "Django's Tasks may not be installed",
    "console.schedule": "Django's Tasks may not be installed",
    "console.state": "Django's Tasks may not be installed",
    "core.testruns": "only runs of tests start a server",
    "health": "Django's Tasks may not be installed",
    "management.commands.messaging_check": "Django's Tasks may not be installed",
    "management.commands.messaging_tasks": "Django's Tasks may not be installed",
    "management.commands.periodic_tasks": "Django's Tasks may not be installed",
    "management.commands.run_messaging": "Django's Tasks may not be installed",
    "management.commands.run_worker": "Django's Tasks may not be installed",
    "management.loops": "Django's Tasks may not be installed",
    "otel": "Django's Tasks may not be installed",
    "pytest_plugin": "pytest loads it at each start, in other projects too",
    "surveys": "Django's Tasks may not be installed",
    "web.directories": "a process that saves users doesn't need all services",
}


def upward_imports(
    imports: dict[str, set[str]], floors: tuple[tuple[str, ...], ...], place: Callable[[str], str]
) -> list[tuple[str, str]]:
    """The pairs of modules of which the first one imports the second one, which is not below it."""
    level = {name: at for at, names in enumerate(floors) for name in names}
    return [
        (importing, name)
        for importing, names in imports.items()
        for name in sorted(names)
        if place(importing) != place(name) and level[place(importing)] <= level[place(name)]
    ]


def import_circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules that import each other, directly or through others."""

    def reachable(name: str) -> set[str]:
        found: set[str] = set()
        waiting = [name]
        while waiting:
            new = imports[waiting.pop()] - found
            found |= new
            waiting += new
        return found

    reached = {name: reachable(name) for name in imports}
    circles = {tuple(sorted(b for b in reached[a] if a in reached[b])) for a in imports if a in reached[a]}
    return [list(circle) for circle in sorted(circles)]


def short(dotted: str) -> str:
    return dotted.removeprefix(f"{NAME}.")


class TestLayers:
    """Imports point downwards only: commands, web and tasks use services, services use core."""

    def test_each_part_has_a_layer(self) -> None:
        listed = [name for names in LAYERS for name in names]
        assert sorted(listed) == sorted({part_of(dotted) for dotted in modules()})

    def test_no_layer_imports_from_above(self) -> None:
        imports = {dotted: imported_modules(dotted, path) for dotted, path in modules().items()}
        found = {(short(one), short(other)) for one, other in upward_imports(imports, LAYERS, part_of)}
        assert found == set(UPWARDS)

    def test_core_has_floors(self) -> None:
        core = {f"{NAME}.core.{name}" for names in FLOORS for name in names}
        assert core == set(modules("core")) - {f"{NAME}.core"}
        imports = {dotted: imported_modules(dotted, modules()[dotted]) & core for dotted in core}
        assert upward_imports(imports, FLOORS, lambda dotted: dotted.rpartition(".")[2]) == []

    def test_functions_import_only_for_a_reason(self) -> None:
        found = {short(dotted) for dotted, path in modules().items() if imported_by_functions(dotted, path)}
        assert found == set(LAZY)

    def test_checker_finds_imports_from_above(self) -> None:
        floors = (("a",), ("b", "c"), ("d",))
        imports = {"a": {"b"}, "b": {"a"}, "c": {"a", "b"}, "d": {"a", "b", "d"}}
        assert upward_imports(imports, floors, str) == [("a", "b"), ("c", "b")]

    def test_services_do_not_import_djangos_web_modules(self) -> None:
        web = tuple(f"django.{name}" for name in ("http", "views", "urls", "forms", "template", "contrib"))
        for dotted, path in modules("core", "services").items():
            for name in imported(dotted, path):
                # a reader of databases; classes for type checkers alone
                if not name.startswith(("django.contrib.gis.geoip2", "django.contrib.auth.")):
                    assert not name.startswith(web), f"{dotted} imports {name}"

    def test_no_module_imports_itself_through_others(self) -> None:
        """Imports of functions and for type checking count too: each module can be understood after those
        that it imports. So do the packages of a module, which Python runs before it."""
        assert import_circles({name: run_by_import(name, path) for name, path in modules().items()}) == []

    def test_checker_finds_circles(self) -> None:
        assert import_circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]

    def test_checker_finds_imports(self, tmp_path: Path) -> None:
        path, dotted = tmp_path / "sample.py", f"{NAME}.core.sample"
        path.write_text(
            "def f():\n    from ..web.views import chats\nfrom . import clients\nimport redis.client\n"
        )
        clients, web = f"{NAME}.core.clients", f"{NAME}.web"
        views = (f"{web}.views", f"{web}.views.chats")
        assert set(imported(dotted, path)) == {views[1], clients, "redis.client"}
        assert imported_by_functions(dotted, path) == {views[1]}
        assert run_by_import(dotted, path) == {clients, web, *views}


class TestDatabase:
    def test_package_has_no_models_and_no_migrations(self) -> None:
        assert list(apps.get_app_config(NAME).get_models()) == []
        assert not [dotted for dotted in modules() if dotted.rpartition(".")[2] in {"models", "migrations"}]

    @pytest.mark.django_db
    def test_package_has_no_tables(self) -> None:
        from django.contrib.auth.models import Permission
        from django.contrib.contenttypes.models import ContentType

        assert ContentType.objects.exists()
        assert not ContentType.objects.filter(app_label__contains="messaging").exists()
        assert not Permission.objects.filter(content_type__app_label__contains="messaging").exists()
        output = StringIO()
        call_command("makemigrations", check=True, dry_run=True, stdout=output)
        assert "No changes detected" in output.getvalue()


LUA = {"/".join(path.with_suffix("").parts[-2:]): path for path in sorted(PACKAGE.rglob("*.lua"))}
SCRIPTS = [name for name in LUA if "/_" not in name]

USES = re.compile(r"^-- uses ((?:\w+/)?_\w+)\.lua$", re.MULTILINE)
#: `KEYS  1 log`, `ARGV  2… ids`, `KEYS  1-8 chat (_chat.lua)`: the first keys of a resource
LISTED = re.compile(r"^-- (KEYS|ARGV)  ?(\d+)(?:-(\d+))?(…?) \S.*$", re.MULTILINE)
NUMBERED = re.compile(r"\b(KEYS|ARGV)\[(\d+)\]")
#: any other use: KEYS[at], #ARGV, ipairs(KEYS), ARGV[1 + at]
OTHERWISE = re.compile(r"\b(KEYS|ARGV)\b(?!\[\d+\])")
#: a header line for the first keys of a resource, and the line of the body that names them
RESOURCE = re.compile(r"^-- KEYS  1-(\d+) (\w+) \((?:\w+/)?_\w+\.lua\)$", re.MULTILINE)
NAMED = re.compile(r"^local (\w+) = (\w+)_at\(KEYS\)$", re.MULTILINE)
#: the function that names the keys of a resource
NAMING = re.compile(r"^local function (\w+)_at\(keys\)\n  return \{(.*?)\}\nend$", re.MULTILINE | re.DOTALL)


@functools.cache
def uses(name: str) -> list[str]:
    """The pieces that the header of a script names."""
    folder = name.partition("/")[0]
    return [used if "/" in used else f"{folder}/{used}" for used in USES.findall(text_of(name))]


@functools.cache
def resources() -> dict[str, dict[str, list[int]]]:
    """The names of the keys of each resource, and the place of each among the keys."""
    return {
        resource: {
            name: [int(number) for number in re.findall(r"keys\[(\d+)\]", value)]
            for name, value in re.findall(r"(\w+) = (\{.*?\}|[^,{}]+)", fields)
        }
        for name in LUA
        for resource, fields in NAMING.findall(text_of(name))
    }


@functools.cache
def lengths(resource: str) -> set[int]:
    """How many keys of a resource scripts take, as their headers say."""
    found = [RESOURCE.findall(text_of(name)) for name in LUA]
    return {int(length) for each in found for length, named in each if named == resource}


class Script(NamedTuple):
    """A script: what its header lists and what its body uses."""

    header: str
    code: str
    """With the pieces it uses."""
    own: str = ""
    """Without them, if it uses any."""

    @property
    def listed(self) -> list[tuple[str, int, str]]:
        """KEYS or ARGV, number, and "…" for all from there on."""
        return [
            (kind, number, tail)
            for kind, first, last, tail in LISTED.findall(self.header)
            for number in range(int(first), int(last or first) + 1)
        ]

    @property
    def fixed(self) -> set[tuple[str, int]]:
        return {(kind, number) for kind, number, tail in self.listed if not tail}

    @property
    def tails(self) -> dict[str, int]:
        return {kind: number for kind, number, tail in reversed(self.listed) if tail}

    @property
    def numbered(self) -> set[tuple[str, int]]:
        return {(kind, int(number)) for kind, number in NUMBERED.findall(self.code)}

    @property
    def otherwise(self) -> set[str]:
        return set(OTHERWISE.findall(self.code))

    def problems(self) -> list[str]:
        """Contradictions between header and body."""
        tails = self.tails
        unlisted = {(kind, n) for kind, n in self.numbered - self.fixed if n < tails.get(kind, n + 1)}
        unused = {(kind, n) for kind, n in self.fixed - self.numbered if kind not in self.otherwise}
        unlisted_tails = {kind for kind in self.otherwise - set(tails) if kind not in dict(self.fixed)}
        idle = {
            kind
            for kind in set(tails) - self.otherwise
            if not any(listed == kind and n >= tails[kind] for listed, n in self.numbered)
        }
        return [
            *(f"{kind}[{n}] is not in the header" for kind, n in sorted(unlisted)),
            *(f"{kind} {n} of the header is not used" for kind, n in sorted(unused)),
            *(f"{kind} is used as a list, which the header does not list" for kind in unlisted_tails),
            *(f"{kind} {tails[kind]}… of the header is not used" for kind in idle),
            *self._holes(),
            *self._problems_of_the_resource(),
        ]

    def _problems_of_the_resource(self) -> Iterator[str]:
        """The body must name the keys that the header lists, and use some of the last ones: otherwise a
        shorter list would do. A header may also list each key by its number."""
        code = self.own or self.code
        listed, named = RESOURCE.findall(self.header), NAMED.findall(code)
        if listed and [resource for _, resource in listed] != [resource for _, resource in named]:
            yield f"the header lists the keys of {listed}, the body names those of {named}"
            return
        keys = [number for kind, number in self.fixed if kind == "KEYS"]
        for table, resource in named:
            places = resources()[resource]
            used = set(re.findall(rf"\b{table}\.(\w+)", code))
            yield from (f"{resource} has no key {name}" for name in sorted(used - set(places)))
            last = max((number for name in used & set(places) for number in places[name]), default=0)
            shorter = max((one for one in lengths(resource) if one < len(keys)), default=0)
            if last > len(keys) or (listed and last <= shorter):
                yield f"the header lists {len(keys)} keys of {resource}, the last one used is {last}"

    def _holes(self) -> Iterator[str]:
        for kind in ("KEYS", "ARGV"):
            numbers = [number for listed, number, _ in self.listed if listed == kind]
            once = list(dict.fromkeys(numbers))
            if once != list(range(1, len(once) + 1)):
                yield f"{kind} of the header are numbered {numbers}"


def without_comments(text: str) -> str:
    return re.sub(r"--.*", "", text)


@functools.cache
def text_of(name: str) -> str:
    return LUA[name].read_text(encoding="utf-8")


def read(name: str) -> Script:
    """A script with the pieces it uses."""
    text = text_of(name)
    header = re.match(r"(?:--.*\n)*", text)
    assert header is not None
    used = "".join(map(commands.read, commands.pieces(f"{name}.lua")))
    return Script(header[0], without_comments(used + text), without_comments(text))


def functions(text: str) -> dict[str, str]:
    """The functions that a piece defines, with their bodies."""
    found = re.findall(r"^local function (\w+)(\(.*?)^end$", without_comments(text), re.MULTILINE | re.DOTALL)
    return dict(found)


def top_of(name: str) -> str:
    """The declarations at the top of a script's own code."""
    found = re.match(r"(?:\s*\n|local (?!function).*\n(?:[ }].*\n)*)*", own_code(name))
    assert found is not None
    return found[0]


def own_code(name: str) -> str:
    return without_comments(text_of(name))


def reached(name: str) -> dict[str, str]:
    """The functions of its pieces that a script calls, directly or through others."""
    defined: dict[str, str] = {}
    for piece in commands.pieces(f"{name}.lua"):
        defined |= functions(commands.read(piece))
    found: dict[str, str] = {}
    waiting = [own_code(name)]
    while waiting:
        code = waiting.pop()
        called = {function for function in defined if re.search(rf"\b{function}\(", code)} - set(found)
        found |= {function: defined[function] for function in called}
        waiting += [defined[function] for function in called]
    return found


@functools.cache
def passed_keys() -> dict[str, set[str]]:
    """The attributes of keys that calls pass to a script: `Script("chats/ack", self._keys.reading, …)`."""
    found: dict[str, set[str]] = {}
    for path in modules("services").values():
        for node in ast.walk(tree(path)):
            match node:
                case ast.Call(
                    func=ast.Name("Script"), args=[ast.Constant(str(name)), ast.Attribute(attr=keys), *_]
                ):
                    found.setdefault(name, set()).add(keys)
    return found


#: resources whose keys have one order: as the scripts name it, and where it is written in Python
ONE_ORDER = [
    ("channel", FileChannelKeys, "all"),
    ("chat", ChatKeys, "all_keys"),
    ("directory", DirectoryKeys, "all_keys"),
    ("mailbox", MailboxKeys, "all_keys"),
    ("user", UserKeys, "joining_keys"),
]
#: such resources with further keys, of a number that differs from call to call
BEFORE_OTHERS = [("broadcast", BroadcastKeys, "fixed")]
#: such resources whose keys each script lists itself
LISTED_BY_SCRIPTS = [
    ("aggregates/delete", AggregateKeys, "all"),
    ("aggregates/flush", AggregateKeys, "all"),
]


class TestScripts:
    @pytest.mark.parametrize("name", SCRIPTS)
    def test_header_describes_the_body(self, name: str) -> None:
        script = read(name)
        assert script.problems() == []
        assert re.match(r"-- [A-Z](?:.|\n-- )*\.", script.header), "the header must begin with the purpose"
        assert re.search(r"^-- Returns \S", script.header, re.MULTILINE)
        for line in script.header.splitlines():
            if re.match(r"--\s*(KEYS|ARGV)\b", line):
                assert LISTED.match(line), line

        named = NUMBERED.findall(top_of(name))
        assert len(named) == len(set(named)), "the top must name each key and argument exactly once"
        assert not NUMBERED.findall(own_code(name)[len(top_of(name)) :])

        code = "\n".join([own_code(name), *reached(name).values()])
        called = set(re.findall(r"redis\.p?call\(\s*'(\w+)'", code))
        assert called, "no commands found in the code"
        if re.search(r"^-- reads only$", script.header, re.MULTILINE):
            assert called <= READING | HOUSEKEEPING
        else:
            assert called - READING, "the script only reads: its header must have the line 'reads only'"

    @pytest.mark.parametrize("name", LUA)
    def test_scripts_and_pieces_are_used(self, name: str) -> None:
        if "/_" in name:
            assert any(name in uses(other) for other in LUA), f"no script uses {name}"
        else:
            assert name in constants(), f"nothing calls {name}"
        written = USES.findall(text_of(name))
        assert set(uses(name)) <= set(LUA)
        assert written == sorted(written)
        code = own_code(name)
        for piece in uses(name):
            assert any(re.search(rf"\b{function}\(", code) for function in functions(text_of(piece))), piece
        order = commands.pieces(f"{name}.lua")
        assert len(order) == len(set(order))
        for at, piece in enumerate(order):
            assert set(commands.pieces(piece)) <= set(order[:at]), "a piece comes after those that it uses"

        assert "cjson.decode" not in code, "scripts don't parse what people write"
        assert not set(re.findall(r"'([A-Z]+)'", code)) & {"KEYS", "FLUSHALL", "FLUSHDB", "SCAN", "CONFIG"}

    @pytest.mark.parametrize(("resource", "kind", "attribute"), [*ONE_ORDER, *BEFORE_OTHERS])
    def test_the_keys_of_a_resource_have_one_order(self, resource: str, kind: type, attribute: str) -> None:
        suffixes = [key.rpartition("}:")[2] for key in getattr(kind("p", "x"), attribute)]
        named = {number: name for name, numbers in resources()[resource].items() for number in numbers}
        expected = [named[number].replace("_", "-") for number in range(1, len(named) + 1)]
        assert [suffix.partition(":")[0] for suffix in suffixes] == expected

    @pytest.mark.parametrize(("name", "kind", "attribute"), LISTED_BY_SCRIPTS)
    def test_the_keys_that_scripts_list_have_the_same_order(
        self, name: str, kind: type, attribute: str
    ) -> None:
        suffixes = [key.rpartition("}:")[2] for key in getattr(kind("p", "x"), attribute)]
        assert re.findall(r"^-- KEYS  \d (\w+)$", text_of(name), re.MULTILINE) == suffixes
        named = re.search(r"^local (.*) = KEYS\[1\]", top_of(name), re.MULTILINE)
        assert named is not None
        assert named[1].split(", ") == suffixes

    @pytest.mark.parametrize(("resource", "kind", "attribute"), ONE_ORDER)
    def test_as_many_keys_are_passed_as_the_header_lists(
        self, resource: str, kind: type, attribute: str
    ) -> None:
        keys, passed = kind("p", "x"), passed_keys()
        for name in SCRIPTS:
            for length, listed in RESOURCE.findall(text_of(name)):
                if listed == resource:
                    assert {len(getattr(keys, one)) for one in passed[name]} == {int(length)}, name


#: commands allowed in read scripts: they remove data that limits already hide
HOUSEKEEPING = {"LTRIM", "UNLINK"}
#: commands that change nothing
READING = {
    "EXISTS", "GET", "HEXISTS", "HGET", "HGETALL", "HKEYS", "HLEN", "HMGET", "LINDEX", "LLEN", "LRANGE",
    "MGET", "PTTL", "SISMEMBER", "SMISMEMBER", "STRLEN", "TIME", "TTL", "TYPE", "ZCARD", "ZCOUNT",
    "ZLEXCOUNT", "ZMSCORE", "ZRANGE", "ZRANGEBYLEX", "ZRANGEBYSCORE", "ZRANK", "ZREVRANGE",
    "ZREVRANGEBYSCORE", "ZREVRANK", "ZSCORE",
}  # fmt: skip


@functools.cache
def constants(*paths: Path) -> set[str]:
    """All string constants in these files, or in the package's Python code."""
    return {
        node.value
        for path in paths or modules().values()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


#: scripts that only other folders call, with the reason
CALLED_FROM_ELSEWHERE = {
    "common/register": "there are registries of queues and of directories",
    "users/blocks_check": "chats check whom a user may add",
}
#: folders whose scripts use pieces of another one, with the reason
BUILT_ON = {
    ("chats", "users"): "joining a chat writes the user's index of chats",
    ("expiries", "jobs"): "a timer is a job",
    ("explaining", "chats"): "it reads what members have not read",
    ("explaining", "files"): "it reads what consumers have not acked",
    ("explaining", "jobs"): "it reads what jobs wait for",
    ("tasks", "jobs"): "a periodic task is pushed as a job",
}


class TestFolders:
    """A capability is one folder, with its scripts in it."""

    def test_each_script_stands_beside_its_caller(self) -> None:
        beside = {name for name in SCRIPTS if name in constants(*LUA[name].parent.glob("*.py"))}
        assert set(SCRIPTS) - beside == set(CALLED_FROM_ELSEWHERE)

    def test_scripts_use_pieces_of_their_folder_or_common_ones(self) -> None:
        folders = {(name.partition("/")[0], used.partition("/")[0]) for name in LUA for used in uses(name)}
        assert {(own, other) for own, other in folders if other not in (own, "common")} == set(BUILT_ON)


class TestHeaderChecker:
    """The checker finds planted faults."""

    GOOD = "-- Does it.\n-- KEYS  1 log\n-- ARGV  1 user: who\n-- ARGV  2… ids\n-- Returns 1\n"
    CODE = "return redis.call('X', KEYS[1], ARGV[1], unpack(ARGV, 2))"
    #: with the keys of a chat, of which `info` is the sixth
    CHAT = "-- KEYS  1-8 chat (_chat.lua)\n"
    OF_CHAT = "local keys = chat_at(KEYS)\nreturn redis.call('X', keys.newest, keys.info)"

    def test_correct_script_has_no_problems(self) -> None:
        assert Script(self.GOOD, self.CODE).problems() == []
        assert Script(self.CHAT, self.OF_CHAT).problems() == []

    @pytest.mark.parametrize(
        ("header", "code"),
        [
            (GOOD, CODE + " KEYS[2]"),
            (GOOD.replace("-- KEYS  1 log\n", ""), CODE),
            (GOOD.replace("1 log", "2 log"), CODE),
            (GOOD, CODE.replace("KEYS[1]", "'k'")),
            (GOOD, "return redis.call('X', KEYS[1], ARGV[1])"),
            (GOOD.replace("-- KEYS  1 log\n", "-- KEYS  1 log\n-- KEYS  3 other\n"), CODE + " KEYS[3]"),
            ("-- KEYS  1 log\n", "redis.call('X', KEYS[1], unpack(ARGV))"),
            (CHAT, "return 1"),
            (CHAT, OF_CHAT.replace("chat_at", "user_at")),
            (CHAT, OF_CHAT.replace("keys.info", "keys.seniority")),
            (CHAT, OF_CHAT.replace("keys.info", "keys.hidden")),
            (CHAT, OF_CHAT.replace(", keys.info", "")),
            (CHAT.replace("1-8", "1-5"), OF_CHAT),
            (CHAT.replace("1-8", "1-14"), OF_CHAT),
            ("-- KEYS  1 newest\n", OF_CHAT),
        ],
    )
    def test_planted_faults_are_found(self, header: str, code: str) -> None:
        assert Script(header, code).problems()
