"""The description of the package on PyPI: README.md with absolute links, because PyPI has no other file.

They lead to `Source` in [project.urls] of pyproject.toml, a repository on GitHub. Without it, relative links
become their text, and pictures are left out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"\[([^]]*)\]\((?!https?:)([^)]+)\)")
PICTURE = re.compile(r"<picture>.*?</picture>|<img\s[^>]*>", re.DOTALL)
ADDRESS_OF_PICTURE = re.compile(r'\b(src|srcset)="(?!https?:)([^"]+)"')


class ReadmeHook(MetadataHookInterface):
    """Adds the field `readme`, which pyproject.toml declares as dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the field."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        source = metadata.get("urls", {}).get("Source", "").rstrip("/")
        described = with_absolute_links(text, source) if source else without_relative_links(text)
        metadata["readme"] = {"content-type": "text/markdown", "text": described}


def with_absolute_links(text: str, source: str) -> str:
    """The text with links to the files and pictures of the repository `source`."""

    def link(found: re.Match[str]) -> str:
        label, target = found.groups()
        return f"[{label}]({source}{target if target.startswith('#') else f'/blob/HEAD/{target}'})"

    return ADDRESS_OF_PICTURE.sub(rf'\1="{source}/raw/HEAD/\2"', LINK.sub(link, text))


def without_relative_links(text: str) -> str:
    """The text without its relative links, and without pictures."""
    return LINK.sub(r"\1", PICTURE.sub("", text))
