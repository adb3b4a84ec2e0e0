"""Mistakes in the app's Lua scripts, and another time of the server, for as long as a test wants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from django_redis_messaging.core import commands

#: a script without its suffix, a text in it, and its faulty replacement
Plant = tuple[str, str, str]
Planting = Callable[[Plant], None]


def planted(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Load the scripts with this mistake in them."""
    where, line, mistake = plant
    read = commands.read
    assert read(f"{where}.lua").count(line) == 1

    def misread(filename: str) -> str:
        text = read(filename)
        return text.replace(line, mistake) if filename == f"{where}.lua" else text

    monkeypatch.setattr(commands, "read", misread)
    commands.load.cache_clear()


@contextmanager
def server_clock(ms: int | str) -> Iterator[None]:
    """Scripts read this time of the server: a number, or an expression in which NOW is the real time."""
    real = "time[1] * 1000 + math.floor(time[2] / 1000)"
    time = str(ms).replace("NOW", real)
    with pytest.MonkeyPatch.context() as monkeypatch:
        planted(("common/_time", f"return {real}", f"return math.floor({time})"), monkeypatch)
        exact = "return time[1] * 1000000 + time[2]"
        planted(("common/_time", exact, f"return ({time}) * 1000"), monkeypatch)
        try:
            yield
        finally:
            monkeypatch.undo()
            commands.load.cache_clear()
