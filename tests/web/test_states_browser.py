"""Every state of the pages is accessible. With SCREENSHOTS, makes screenshots: see .ci/screenshots."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.contrib.auth.models import User
from playwright.sync_api import Page
from pytest_django import Settings

from ..support.page_states import STATES, build_world
from .test_browser import Visit, visit
from .test_site import Alone

__all__ = ["visit"]  # the fixture

#: width and height of the window: px
SIZES = [(360, 740), (768, 1024), (1440, 900)]
#: the states of the gate; all others run in the large form
QUICK = {"room_menu", "room_completing", "new_refused"}
#: the frame: who sees the pages, and whether the site has an admin
FRAMES = ["own", "admin", "staff"]


def states() -> list[object]:
    wanted = os.environ.get("STATES", "").split() or list(STATES)
    return [
        pytest.param(name, frame, marks=() if name in QUICK and frame == "own" else pytest.mark.long)
        for name in wanted
        for frame in FRAMES
    ]


@pytest.mark.parametrize(("name", "frame"), states())
def test_state(visit: Visit, person: Callable[..., User], settings: Settings, name: str, frame: str) -> None:
    if frame == "own":
        settings.ROOT_URLCONF, settings.LOGIN_URL = Alone, "/login/"
    world = build_world(person, staff=frame == "staff")
    page = visit(world.alice, viewport={"width": 1440, "height": 900})
    STATES[name](page, world)
    found = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.evaluate("Promise.allSettled(document.getAnimations().map(one => one.finished))")
        found += [
            f"{scheme}: {node['html']} {node['failureSummary']}"
            for one in Axe().run(page).response["violations"]
            for node in one["nodes"]
        ]
        if directory := os.environ.get("SCREENSHOTS"):
            take_screenshots(page, Path(directory), f"{name}-{frame}-{scheme}")
    assert found == []


def take_screenshots(page: Page, directory: Path, name: str) -> None:
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        page.screenshot(path=directory / f"{name}-{width}.png", animations="disabled")
