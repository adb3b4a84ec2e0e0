"""What users of this app, or data that it has stored, can name: a line for each; public.txt has them.

The place of a module in the package appears only if the documentation, settings or stored data name it.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import inspect
import logging
import pkgutil
import re
import tomllib
import types
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from django.core.management import BaseCommand, load_command_class
from django.template import engines
from django.urls import URLPattern
from django.utils.module_loading import import_string
from django.views import View

import django_redis_messaging

NAME = "django_redis_messaging"
PACKAGE = Path(str(django_redis_messaging.__file__)).parent
PROJECT = PACKAGE.parent / "pyproject.toml"

#: modules with `__all__`, by the part of their name after the package's
LISTING = ("", ".tasks", ".live", ".forms", ".web.views")
#: documented names of other modules
DOCUMENTED = {
    ".admin": ("register",),
    ".cluster": ("ClusterClient", "ClusterConnectionFactory", "ClusterUnavailable"),
    ".console.access": ("Console",),
    ".context_processors": ("bell",),
    ".signals": ("message_sent",),
    ".testing": ("MessagingTestMixin", "fire"),
    ".throttling": ("RateLimitThrottle",),
    ".web.digest_mailing": ("send_digests",),
    ".web.identity": ("Identity", "current"),
    ".web.request_keys": ("address_key", "client_address"),
}
#: what a site may set in its subclasses of views; all else in them may change
OF_VIEWS = {"service", "service_of_mail", "inbox", "identity", "template_name"}
#: public members of these classes that only this app uses
INTERNAL = {
    "File": {"__init__"},
    "RedisBackend": {
        "cancel_many",
        "engine",
        "prepared",
        "register",
        "result_ttl_of",
        "send_committed",
        "serving",
        "timeout",
    },
    "RedisTask": {"needs", "retries", "unique_key"},
    "Term": {"__init__"},
}
#: dotted paths that are written in the settings and URLs of sites
IN_SETTINGS = (
    "apps.MessagingConfig",
    "cluster.ClusterClient",
    "cluster.ClusterConnectionFactory",
    "console.access.Console",
    "console.urls.urlpatterns",
    "context_processors.bell",
    "debug_panel.MessagingPanel",
    "health.Consuming",
    "health.Redis",
    "metrics.Collector",
    "metrics.observe_operation",
    "metrics.urls.urlpatterns",
    "metrics.views.MetricsView",
    "middleware.DeadlineMiddleware",
    "middleware.RateLimitMiddleware",
    "otel.instrument",
    "otel.uninstrument",
    "tasks.RedisBackend",
    "throttling.RateLimitThrottle",
    "urls.urlpatterns",
    "web.identity.Identity",
)
#: loggers that the documentation names, apart from the one of the whole package
LOGGERS = ("console.base", "tasks.commits")
#: methods with which an object can be used in a statement
SPECIAL = ("__aenter__", "__aiter__", "__bool__", "__call__", "__enter__", "__iter__", "__len__")


class Source:
    """Text that is shown in a signature as it is."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def sections() -> Iterator[str]:
    """All lines except those of JSON."""
    import_all()
    yield from names()
    for title, lines in {
        "settings": settings(),
        "commands": commands(),
        "URLs": urls(),
        "system checks": checks(),
        "templates": templates(),
        "static files": files("static"),
        "pytest": fixtures(),
        "dotted paths in settings and URLs": paths(IN_SETTINGS),
        "exceptions, as they are stored with tasks": exceptions(),
        "loggers": loggers(),
        "extras": extras(),
    }.items():
        yield from section(title, lines)


def section(title: str, lines: Iterator[str]) -> Iterator[str]:
    """The lines below a heading."""
    yield from ("", f"[{title}]", *lines)


def import_all() -> list[types.ModuleType]:
    """Import all modules of the package."""
    found = pkgutil.walk_packages([str(PACKAGE)], f"{NAME}.")
    return [importlib.import_module(module.name) for module in found]


def names() -> Iterator[str]:
    """The public names of the modules, in the order of the alphabet, with what belongs to each."""
    for suffix in (*LISTING, *DOCUMENTED):
        yield from ("", f"[{NAME}{suffix}]")
        for name, value in values(suffix):
            yield from described(name, value)


def values(suffix: str) -> Iterator[tuple[str, Any]]:
    """The public names of a module with their values."""
    module = django_redis_messaging.live if suffix == ".live" else importlib.import_module(NAME + suffix)
    yield from ((name, getattr(module, name)) for name in sorted(DOCUMENTED.get(suffix) or module.__all__))


def annotated() -> Iterator[tuple[str, Any]]:
    """The public functions, classes and methods, as typing.get_type_hints() takes them."""
    for suffix in (*LISTING, *DOCUMENTED):
        for name, value in values(suffix):
            if inspect.isclass(value) or inspect.isfunction(value):
                yield f"{NAME}{suffix}.{name}", value
            for attribute in dir(value) if inspect.isclass(value) else ():
                method = getattr(value, attribute)
                is_public = not attribute.startswith("_") or attribute in {"__init__", *SPECIAL}
                if is_public and (inspect.isfunction(method) or inspect.ismethod(method)) and is_own(method):
                    yield f"{NAME}{suffix}.{name}.{attribute}", method


def described(name: str, value: Any) -> Iterator[str]:
    """A name and what belongs to it."""
    if inspect.isclass(value):
        yield f"class {name}{of_class(value)}"
        yield from members(name, value)
    elif inspect.isfunction(inspect.unwrap(value)):
        yield function(name, inspect.unwrap(value))
    else:
        yield f"{name}: {type(value).__name__}"


def of_class(kind: type) -> str:
    """The parameters of a class, unless its fields say the same, and its public bases."""
    creator, bases = owner_of(kind, "__init__"), ", ".join(dict.fromkeys(bases_of(kind)))
    has_own = is_own(creator) and not dataclasses.is_dataclass(creator)
    is_shown = has_own and "__init__" not in INTERNAL.get(kind.__name__, ())
    shown = signature(kind, method=False).removesuffix(" -> None") if is_shown else ""
    return shown + (f" of {bases}" if bases else "")


def bases_of(kind: type) -> Iterator[str]:
    """The names of the nearest public bases of a class."""
    for base in kind.__bases__:
        if is_own(base) and getattr(django_redis_messaging, base.__name__, None) is not base:
            yield from bases_of(base)
        elif base is not object:
            yield base.__name__


def owner_of(kind: type, name: str) -> type:
    """The class that defines an attribute of a class."""
    return next((base for base in kind.__mro__ if name in vars(base)), object)


def is_own(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).startswith(NAME)


def members(path: str, kind: type) -> Iterator[str]:
    """The public members of a class that the package defines: fields in their order, then the others."""
    fields = dict(fields_of(kind))
    yield from (f"{path}.{name}: {text}" for name, text in fields.items())
    hidden = {*fields, *INTERNAL.get(kind.__name__, ())}
    for name in sorted(set(dir(kind)) - hidden):
        is_named = not name.startswith("_") or name in SPECIAL
        if is_named and is_own(owner_of(kind, name)) and (not issubclass(kind, View) or name in OF_VIEWS):
            yield from member(path, kind, name)


def fields_of(kind: type) -> Iterator[tuple[str, str]]:
    """The package's fields of a dataclass or a named tuple: the name, the type and the default of each."""
    own = {name for base in kind.__mro__ if is_own(base) for name in inspect.get_annotations(base)}
    for field in dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ():
        if field.name in own:
            yield field.name, f"{annotation(field.type)}{default_of_field(field)}"
    for name in getattr(kind, "_fields", ()):
        found = inspect.signature(kind).parameters[name]
        yield name, str(found.replace(annotation=shown(found.annotation))).partition(": ")[2]


def member(path: str, kind: type, name: str) -> Iterator[str]:
    """One member. An async version with the same parameters as the sync one is named beside it."""
    value = vars(owner_of(kind, name))[name]
    inner = getattr(value, "__func__", getattr(value, "func", value))
    if isinstance(value, property | functools.cached_property):
        yield f"{path}.{name}: {result(value.fget if isinstance(value, property) else value.func)}"
    elif not inspect.isfunction(inner):
        yield f"{path}.{name} = {source(value)}"
    elif not is_async_version(kind, name):
        both = f"{name}, a{name}" if is_async_version(kind, f"a{name}") else name
        how = f"{type(value).__name__} " if isinstance(value, classmethod | staticmethod) else ""
        yield how + function(f"{path}.{both}", inner, method=not isinstance(value, staticmethod))


def is_async_version(kind: type, name: str) -> bool:
    """Whether a method is the async version of another one, with the same signature."""
    found, other = (getattr(kind, one, None) for one in (name, name[1:]))
    if not name.startswith("a") or not inspect.iscoroutinefunction(found) or not callable(other):
        return False
    return not is_async(other) and signature(found, method=False) == signature(other, method=False)


def is_async(value: Any) -> bool:
    return inspect.iscoroutinefunction(value) or inspect.isasyncgenfunction(value)


def function(path: str, value: Any, *, method: bool = False) -> str:
    """A function with its signature."""
    return f"{'async ' if is_async(value) else ''}{path}{signature(value, method=method)}"


def signature(value: Any, *, method: bool) -> str:
    """Parameters and result, with annotations as they are written."""
    found = inspect.signature(value)
    parameters = [
        one.replace(annotation=shown(one.annotation), default=shown(one.default, source))
        for one in list(found.parameters.values())[method:]
    ]
    return str(
        found.replace(parameters=parameters, return_annotation=shown(found.return_annotation, returned))
    )


def shown(value: Any, convert: Any = None) -> Any:
    """What a signature shows for an annotation or a default."""
    return value if value is inspect.Parameter.empty else Source((convert or annotation)(value))


def annotation(value: Any) -> str:
    text = getattr(value, "__forward_arg__", value)
    return text if isinstance(text, str) else inspect.formatannotation(text)


def returned(value: Any) -> str:
    """The result of an operation, whose body is a generator of steps."""
    return re.sub(r"^Steps\[(.*)\]$", r"\1", annotation(value))


def result(value: Any) -> str:
    found = inspect.signature(value).return_annotation
    return "Any" if found is inspect.Signature.empty else returned(found)


def source(value: Any) -> str:
    """A default or the value of an attribute, as far as it depends neither on the run nor on translations."""
    if inspect.isclass(value) or inspect.isfunction(value):
        return str(value.__name__)
    if isinstance(value, Enum):
        return str(value)
    text = repr(list(value) if isinstance(value, dict) else value)
    return f"{type(value).__name__}()" if " at 0x" in text else text


def default_of_field(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return f" = {source(field.default)}"
    if field.default_factory is not dataclasses.MISSING:
        return f" = {getattr(field.default_factory, '__name__', '?')}()"
    return ""


def settings() -> Iterator[str]:
    """The settings of the app, and the options of its task backend."""
    fields = dataclasses.fields(importlib.import_module(f"{NAME}.conf").Settings)
    for field in fields:
        yield f"REDIS_MESSAGING[{field.name!r}]: {field.type}{default_of_field(field)}"
    [options] = {id(one.OPTIONS): one.OPTIONS for one in import_all() if hasattr(one, "OPTIONS")}.values()
    yield from (f"TASKS OPTIONS[{name!r}] = {value!r}" for name, value in options.items())


def commands() -> Iterator[str]:
    """The management commands with their own options, and those of their actions."""
    module = importlib.import_module(f"{NAME}.management.commands")
    for command in sorted(one.name for one in pkgutil.iter_modules(module.__path__)):
        parser = load_command_class(NAME, command).create_parser("manage.py", command)
        yield from options(f"manage.py {command}", parser, command)


def options(name: str, parser: argparse.ArgumentParser, command: str) -> Iterator[str]:
    """A command, or one of its actions, with its own options."""
    yield name
    standard = {action.dest for action in BaseCommand().create_parser("manage.py", command)._actions}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for chosen, own in action.choices.items():
                yield from options(f"{name} {chosen}", own, command)
        elif action.dest not in standard:
            names = ", ".join(action.option_strings) or action.dest
            yield f"{name} {names}: {kind_of(action)} = {action.default!r}"


def kind_of(action: argparse.Action) -> str:
    """The type of an option's value, and how many values it takes."""
    kind = getattr(action.type, "__name__", "flag" if action.nargs == 0 else "str")
    several = ", may be repeated" if type(action).__name__ == "_AppendAction" else ""
    return kind + (f" {action.nargs}" if action.nargs else "") + several


def urls() -> Iterator[str]:
    """The names of the URLs with their patterns."""
    module = importlib.import_module(f"{NAME}.urls")
    for one in module.urlpatterns:
        assert isinstance(one, URLPattern)
        yield f"{module.app_name}:{one.name} {one.pattern}"


def checks() -> Iterator[str]:
    """The ids of the system checks in the code."""
    text = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    yield from sorted(set(re.findall(r'id="(messaging\.[EWI]\d{3})"', text)))


def templates() -> Iterator[str]:
    """The templates, the blocks of the one that sites replace, and the template tags."""
    yield from files("templates")
    base = (PACKAGE / "templates" / NAME / "base.html").read_text(encoding="utf-8")
    yield from (f"{NAME}/base.html block {name}" for name in re.findall(r"{% block (\w+)", base))
    libraries = engines["django"].engine.template_libraries  # type: ignore[attr-defined]
    for label, library in libraries.items():
        if any(is_own(one) for one in library.tags.values()) or label == "messaging":
            yield from (f"{{% load {label} %}} {{% {tag} %}}" for tag in sorted(library.tags))
            yield from (f"{{% load {label} %}} |{one}" for one in sorted(library.filters))


def files(folder: str) -> Iterator[str]:
    """The files below a folder of the package."""
    found = (path for path in (PACKAGE / folder).rglob("*") if path.is_file())
    yield from sorted(path.relative_to(PACKAGE / folder).as_posix() for path in found)


def fixtures() -> Iterator[str]:
    """The fixtures and the option of the pytest plugin."""
    text = (PACKAGE / "pytest_plugin.py").read_text(encoding="utf-8")
    yield from sorted(re.findall(r"^@pytest\.fixture.*\ndef (\w+)\(", text, re.MULTILINE))
    yield from (f"ini option {name}" for name in re.findall(r'addini\(\s*"(\w+)"', text))


def paths(wanted: tuple[str, ...]) -> Iterator[str]:
    """Dotted paths that can be imported."""
    for path in wanted:
        import_string(f"{NAME}.{path}")
        yield f"{NAME}.{path}"


def exceptions() -> Iterator[str]:
    """The paths under which `retry_on` and results store the exceptions of this app."""
    for _, one in sorted(vars(importlib.import_module(f"{NAME}.errors")).items()):
        if inspect.isclass(one) and issubclass(one, BaseException) and is_own(one):
            yield f"{one.__module__}.{one.__qualname__}"


def loggers() -> Iterator[str]:
    """The documented loggers, if the code has them."""
    yield from (f"{NAME}.{one}" for one in LOGGERS if f"{NAME}.{one}" in logging.root.manager.loggerDict)


def extras() -> Iterator[str]:
    """The extras and the entry points of the distribution."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    yield from (f"{project['name']}[{extra}]" for extra in project["optional-dependencies"])
    for group, points in project["entry-points"].items():
        yield from (f"{group}: {name} = {value}" for name, value in points.items())


def shapes(answers: Iterator[tuple[str, Any]]) -> Iterator[str]:
    """The keys in JSON values with the types of their values. Messages are described once."""
    found: dict[str, dict[str, None]] = {}
    for path, value in answers:
        for key, kind in leaves(path, value):
            found.setdefault(key, {})[kind] = None
    yield from (f"{path}: {' | '.join(kinds)}" for path, kinds in found.items())


def leaves(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """The paths of all values inside a value, with their types. Keys that are ids are shown as <id>."""
    if isinstance(value, dict):
        if "nonce" in value and path != "message":
            yield path, "message"
            path = "message"
        for key, one in sorted(value.items()):
            yield from leaves(f"{path}.{'<id>' if key.isdigit() else key}", one)
    elif isinstance(value, list) and value:
        for one in value:
            yield from leaves(f"{path}[]", one)
    else:
        yield path, "null" if value is None else type(value).__name__
