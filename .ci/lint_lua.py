"""Checks the Lua scripts with luacheck, each after the files that it uses, as Redis gets it.

Prints a line for each problem, and exits with 1 if there is one. A local of a file that several scripts use
counts as unused only if none of them uses it. The configuration is in .luacheckrc.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
#: name with the folder, for example "chats/send.lua" → path
PATHS = {
    f"{path.parent.name}/{path.name}": path
    for path in sorted((ROOT / "django_redis_messaging").rglob("*.lua"))
}
_USES = re.compile(r"^-- uses (\w+/)?(_\w+\.lua)$", re.MULTILINE)
_REPORT = re.compile(r"(\w+/\w+\.lua):(\d+):(\d+): \((\w+)\) (.*)")
_OTHER_LINE = re.compile(r"\bon line (\d+)")
#: luacheck's codes of locals, arguments and values that are not used begin with this
_UNUSED = "W2"


class Place(NamedTuple):
    """A line of a file."""

    filename: str
    line: int


class Problem(NamedTuple):
    """What luacheck reports."""

    place: Place
    column: int
    code: str
    message: str

    def __str__(self) -> str:
        path = PATHS[self.place.filename].relative_to(ROOT)
        return f"{path}:{self.place.line}:{self.column}: {self.code} {self.message}"


def files_of(filename: str) -> list[str]:
    """The script, after the files that it uses directly or indirectly."""
    found: dict[str, None] = {}
    own = filename.partition("/")[0] + "/"
    for folder, used in _USES.findall(PATHS[filename].read_text(encoding="utf-8")):
        found |= dict.fromkeys(files_of((folder or own) + used))
    return [*found, filename]


def run_luacheck(scripts: dict[str, list[Place]]) -> str:
    with tempfile.TemporaryDirectory() as directory:
        for filename in scripts:
            text = "".join(PATHS[each].read_text(encoding="utf-8") for each in files_of(filename))
            path = Path(directory, filename)
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        command = ["luacheck", "--config", str(ROOT / ".luacheckrc"), "--no-cache", "--codes"]
        command += ["--formatter", "plain", "."]
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)  # noqa: S603
    # 1: warnings, 2: syntax errors, 3 and more: luacheck itself failed
    if done.returncode > 2:
        sys.exit(done.stderr)
    return done.stdout


def problems_in(report: str, scripts: dict[str, list[Place]]) -> list[Problem]:
    found: Counter[Problem] = Counter()
    for script, line, column, code, message in _REPORT.findall(report):
        places = scripts[script]

        def other_place(match: re.Match[str], places: list[Place] = places) -> str:
            place = places[int(match[1]) - 1]
            return f"on line {place.line} of {place.filename}"

        # An error at the end of a text has the number of a line behind the last one.
        place = places[min(int(line), len(places)) - 1]
        found[Problem(place, int(column), code, _OTHER_LINE.sub(other_place, message))] += 1
    users = Counter(
        filename for places in scripts.values() for filename in {place.filename for place in places}
    )
    return sorted(
        problem
        for problem, times in found.items()
        if times == users[problem.place.filename] or not problem.code.startswith(_UNUSED)
    )


def main() -> None:
    if not PATHS:
        sys.exit("The package must contain Lua files.")
    scripts = {
        script: [
            Place(filename, line)
            for filename in files_of(script)
            for line, _ in enumerate(PATHS[filename].read_text(encoding="utf-8").splitlines(), 1)
        ]
        for script in PATHS
        if "/_" not in script
    }
    problems = problems_in(run_luacheck(scripts), scripts)
    sys.stdout.writelines(f"{problem}\n" for problem in problems)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
