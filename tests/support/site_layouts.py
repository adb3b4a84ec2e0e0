"""Layouts of sites: the examples of docs/web.md, with the style sheets that they name."""

from __future__ import annotations

import re
from importlib.metadata import distribution
from pathlib import Path

from pytest_django import Settings

ROOT = Path(__file__).parents[2]
#: the style sheets of the examples, except Bootstrap's
STATIC = ROOT / "tests" / "web" / "layouts" / "static"
_EXAMPLE = re.compile(r"^```html\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples() -> dict[str, str]:
    """The templates of docs/web.md."""
    templates = _EXAMPLE.findall((ROOT / "docs" / "web.md").read_text(encoding="utf-8"))
    return dict(zip(("bootstrap", "tailwind", "plain"), templates, strict=True))


def use_layout(settings: Settings, name: str, folder: Path) -> None:
    """Make an example the base.html of the site, and the layout of the pages."""
    (folder / "base.html").write_text(examples()[name], encoding="utf-8")
    (templates,) = settings.TEMPLATES
    settings.TEMPLATES = [{**templates, "DIRS": [folder]}]
    bootstrap = distribution("bootstrap-wrapper").locate_file("bootstrap")
    settings.STATICFILES_DIRS = [STATIC, ("bootstrap", bootstrap)]
    settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "LAYOUT": "base.html"}
