"""The translations of the pages and of the demo are complete, and are those of the texts in the code."""

from __future__ import annotations

import gettext
import os
import re
import shutil
import subprocess
from importlib import import_module
from pathlib import Path

import pytest
from django.core.management import call_command
from django.utils import translation

from django_redis_messaging.web.rendering import divider_text, gap_text

from .support.programs import program

ROOT = Path(__file__).parent.parent
PACKAGE, DEMO = ROOT / "django_redis_messaging", ROOT / "testproject"
LANGUAGES = sorted(path.name for path in (PACKAGE / "locale").iterdir() if path.is_dir())


def catalog(package: Path, language: str) -> str:
    """The translations into a language, without the time of the run that has updated them."""
    text = (package / "locale" / language / "LC_MESSAGES" / "django.po").read_text(encoding="utf-8")
    return re.sub(r'^"POT-Creation-Date:.*\n', "", text, flags=re.MULTILINE)


def compiled_texts(path: Path) -> dict[object, str]:
    with path.open("rb") as file:
        texts: dict[object, str] = vars(gettext.GNUTranslations(file))["_catalog"]
    return texts


@pytest.mark.parametrize("package", [PACKAGE, DEMO], ids=lambda package: package.name)
def test_makemessages_changes_nothing(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / package.name
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(copy)
    call_command(
        "makemessages", locale=LANGUAGES, no_location=True, no_obsolete=True, no_wrap=True, verbosity=0
    )
    for language in LANGUAGES:
        assert catalog(copy, language) == catalog(package, language), "run .ci/makemessages"


@pytest.mark.parametrize("package", [PACKAGE, DEMO], ids=lambda package: package.name)
@pytest.mark.parametrize("language", LANGUAGES)
def test_translations_are_complete(package: Path, language: str, tmp_path: Path) -> None:
    source = package / "locale" / language / "LC_MESSAGES" / "django.po"
    compiled = tmp_path / "django.mo"
    command = [program("msgfmt"), "--check-format", "--statistics", "-o", str(compiled), str(source)]
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert re.fullmatch(r"\d+ translated messages\.", done.stderr.strip()), done.stderr
    assert compiled_texts(source.with_suffix(".mo")) == compiled_texts(compiled), "run .ci/makemessages"


@pytest.mark.parametrize("app", ["admin", "auth"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_no_text_has_another_translation_in_django(language: str, app: str) -> None:
    """That one is shown, if the app comes first in INSTALLED_APPS: the text needs a context."""
    path = Path("locale", language, "LC_MESSAGES", "django.mo")
    django = compiled_texts(Path(import_module(f"django.contrib.{app}").__path__[0]) / path)
    ours = compiled_texts(PACKAGE / path)
    assert [text for text in ours.keys() & django.keys() if text and ours[text] != django[text]] == []


@pytest.mark.parametrize(
    ("language", "texts"),
    [
        ("de", ["1 neue Nachricht", "2 neue Nachrichten", "5 ältere Nachrichten wurden entfernt."]),
        ("zh-hans", ["1 条新消息", "2 条新消息", "5 条更早的消息已被移除。"]),
    ],
)
def test_plurals(language: str, texts: list[str]) -> None:
    with translation.override(language):
        assert [divider_text(1), divider_text(2), gap_text(5)] == texts
