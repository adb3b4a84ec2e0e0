"""The documentation: all examples run, all links have a target, all settings and options are listed."""

import argparse
import ast
import dataclasses
import doctest
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from django.core.management import BaseCommand, load_command_class

from django_redis_messaging import conf
from django_redis_messaging.management import commands

pytestmark = pytest.mark.versions

ROOT = Path(__file__).parent.parent
PAGES = [*sorted(ROOT.glob("README*.md")), *sorted((ROOT / "docs").glob("*.md"))]
#: tests/tutorial types the other one
EXAMPLES = [page for page in PAGES if page.name != "tutorial.md"]
#: not the files of a site, which tests/site/test_readme.py creates
PYTHON = re.compile(r"^```python\n(?!# mysite/)(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"""(?:\]\(|\bsrc(?:set)?="(?=\w))(?!https?:)([^)"#]+)""")


def run_examples(text: str, where: str, names: dict[str, object]) -> None:
    """Run the `>>>` examples of a text."""
    examples = doctest.DocTestParser().get_doctest(text, names, where, where, 0)
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    outcome = runner.run(examples, clear_globs=False)
    assert outcome.failed == 0, f"{where}: {outcome.failed} of {outcome.attempted} examples failed"


@pytest.mark.parametrize("document", EXAMPLES, ids=lambda document: document.name)
def test_examples_of_pages_run(document: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType(document.stem)
    monkeypatch.setitem(sys.modules, document.stem, module)  # tasks are found by the names of their modules
    names = vars(module)
    for block in PYTHON.findall(document.read_text(encoding="utf-8")):
        if ">>>" in block:
            run_examples(block, document.name, names)
        else:
            code = compile(block, document.name, "exec", flags=ast.PyCF_ONLY_AST)
            exec(compile(code, document.name, "exec"), names)  # noqa: S102 (our own documentation)


@pytest.mark.parametrize("document", PAGES, ids=lambda document: document.name)
def test_links_have_a_target(document: Path) -> None:
    targets = LINK.findall(document.read_text(encoding="utf-8"))
    assert [target for target in targets if not (document.parent / target).exists()] == []


def test_every_setting_is_listed_with_its_default() -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    lines = dict(re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", page, re.MULTILINE))
    assert lines == {field.name: repr(field.default) for field in dataclasses.fields(conf.Settings)}


COMMANDS = [module.name for module in pkgutil.iter_modules(commands.__path__)]
SECTION = r"^## `{}`\n(.*?)(?=^## |\Z)"
OPTION = re.compile(r"^\| `([\w-]+)(?: ([^`]*))?`", re.MULTILINE)


def own_options(parser: argparse.ArgumentParser, name: str) -> Iterator[argparse.Action]:
    """The options of a command and of its actions, several of which may have the same ones."""
    standard = {action.dest for action in BaseCommand().create_parser("manage.py", name)._actions}
    for action in parser._actions:
        if action.dest not in standard:
            yield action
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                yield from own_options(one, name)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_listed_with_its_options(name: str) -> None:
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    section = re.search(SECTION.format(name), page, re.MULTILINE | re.DOTALL)
    assert section, "docs/commands.md has no section for it"
    command = load_command_class("django_redis_messaging", name)
    by_name: dict[str, argparse.Action] = {}
    for action in own_options(command.create_parser("manage.py", name), name):
        by_name.setdefault(action.dest, action)
    own = list(by_name.values())
    listed = OPTION.findall(section[1])
    assert [option for option, _ in listed] == [
        (action.option_strings or [action.dest])[-1] for action in own
    ]
    defaults = {action.dest: f"{action.default:g}" for action in own if type(action.default) in (int, float)}
    shown = {action.dest: word for action, (_, word) in zip(own, listed, strict=True)}
    assert {dest: shown[dest] for dest in defaults} == defaults
