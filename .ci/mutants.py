"""Checks the tests with a fixed sample of small mistakes: each is made in the package, one at a time, and the tests
that reach the changed place must fail.

    python .ci/mutants.py draw        draw the sample anew: .ci/mutants.json
    python .ci/mutants.py map         run the deterministic tests, and record which of them reaches what (8 minutes)
    python .ci/mutants.py run         try each mistake that has no result yet (an hour)
    python .ci/mutants.py show        the results

Results are in .mutants/ of the current directory. A mistake is stored as file, function, old line and new line, so
that it survives changes elsewhere; one whose line has gone is reported.
"""

from __future__ import annotations

import ast
import json
import random
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

PACKAGE = Path("django_redis_messaging")
SAMPLE = Path(__file__).with_name("mutants.json")
RESULTS = Path(".mutants")
SEED, EACH = 45, 75
#: seconds that the tests for one mistake may take by the record, and their maximum number
BUDGET, MOST = 60.0, 300
#: tests that compare texts and counts of the code, or make mistakes themselves
EXCEPT = re.compile(r"test_package|test_budgets|test_public|bug|planted|in_a_script|changes_a_line|mistakes")
SWAPS = {
    "py": {
        " < ": " <= ", " <= ": " < ", " > ": " >= ", " >= ": " > ", " == ": " != ", " != ": " == ", " and ": " or ",
        " or ": " and ", " + ": " - ", " - ": " + ", " not in ": " in ", " is not ": " is ", "if not ": "if ",
        "min(": "max(", "max(": "min(", "True": "False", "False": "True", "return ": "return None and ",
        "any(": "all(", "all(": "any(", "[0]": "[-1]", "[-1]": "[0]", "[1:]": "[:]", "yield from ": "() and ",
        " if ": " if not ", "    if ": "    if not ", "while ": "while not ", "0": "1", "1": "2", "2": "3",
    },
    "lua": {
        " < ": " <= ", " <= ": " < ", " > ": " >= ", " >= ": " > ", " == ": " ~= ", " ~= ": " == ", " and ": " or ",
        " or ": " and ", " + ": " - ", " - ": " + ", "not ": "", "math.min": "math.max", "math.max": "math.min",
        "return ": "return nil and ", "true": "false", "false": "true", "0": "1", "1": "2", "2": "3",
        "    redis.call": "    local _ = {} or redis.call", "  redis.call": "  local _ = {} or redis.call",
    },
}  # fmt: skip


def functions(path: Path) -> list[tuple[str, int, int]]:
    """Name, first and last line (from 0, exclusive) of each function, without signature and docstring."""
    text = path.read_text()
    if path.suffix == ".lua":
        begun = [(found[1], text.count("\n", 0, found.start())) for found in re.finditer(r"^local function (\w+)", text, re.M)]
        lines = text.split("\n")
        ends = [next(at for at in range(begin, len(lines)) if lines[at] == "end") for _, begin in begun]
        inside = [(name, begin + 1, end) for (name, begin), end in zip(begun, ends, strict=True)]
        return inside or [("", 0, len(lines))] if path.name.startswith("_") else [*inside, ("", max([0, *(e + 1 for e in ends)]), len(lines))]
    found: list[tuple[str, int, int]] = []

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = f"{prefix}{getattr(child, 'name', '')}"
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                body = child.body[1:] if ast.get_docstring(child) is not None else child.body
                if body and child.end_lineno:
                    found.append((name, body[0].lineno - 1, child.end_lineno))
            elif isinstance(child, ast.ClassDef):
                visit(child, f"{name}.")

    visit(ast.parse(text), "")
    return found


def mistakes(path: Path, body: list[str], rng: random.Random) -> list[tuple[str, str]]:
    """All changes that can be made in the lines of a function: old and new line. Each kind of change comes first
    equally often."""
    swaps = list(SWAPS[path.suffix[1:]].items())
    rng.shuffle(swaps)
    made = [changes(body, old, new) for old, new in swaps]
    return [change for found in made for change in rng.sample(found, len(found))]


def changes(body: list[str], old: str, new: str) -> list[tuple[str, str]]:
    made = []
    for line in body:
        code = line.split("  # ")[0].split(" -- ")[0]
        if body.count(line) > 1 or code.strip().startswith(("--", "#", '"', "raise ", 'f"', "logger.")):
            continue
        for found in re.finditer(re.escape(old), code):
            begin, end = found.span()
            around = line[max(begin - 1, 0) : begin] + (line[end : end + 1] if old.isdigit() else "")
            if old[0].isalnum() and re.search(r"[\w.'\"]", around):
                continue
            made.append((line, line[:begin] + new + line[end:]))
    return made


def is_valid(path: Path, old: str, new: str) -> bool:
    text = path.read_text()
    if text.count(f"\n{old}\n") != 1:
        return False
    if path.suffix == ".lua":
        return True
    try:
        ast.parse(text.replace(f"\n{old}\n", f"\n{new}\n"))
    except SyntaxError:
        return False
    return True


def draw() -> None:
    """One mistake per function at most; functions are drawn evenly."""
    chosen = []
    for suffix in ("lua", "py"):
        rng = random.Random(f"{SEED} {suffix}")
        places = [(path, *found) for path in sorted(PACKAGE.rglob(f"*.{suffix}")) for found in functions(path)]
        rng.shuffle(places)
        drawn: list[dict[str, str]] = []
        for path, name, begin, end in places:
            made = mistakes(path, path.read_text().split("\n")[begin:end], rng)
            valid = ((old, new) for old, new in made if is_valid(path, old, new))
            if len(drawn) < EACH and (one := next(valid, None)):
                drawn.append({"file": str(path), "function": name, "old": one[0], "new": one[1]})
        chosen += drawn
    SAMPLE.write_text(json.dumps(chosen, indent=1, ensure_ascii=False) + "\n")


def place(mistake: dict[str, str]) -> int | None:
    """The line (from 0) of a mistake, if it is still there."""
    path = Path(mistake["file"])
    if not path.exists():
        return None
    lines = path.read_text().split("\n")
    for name, begin, end in functions(path):
        if name == mistake["function"] and lines[begin:end].count(mistake["old"]) == 1:
            return begin + lines[begin:end].index(mistake["old"])
    return None


def record() -> None:
    RESULTS.mkdir(exist_ok=True)
    command = ["uv", "run", "pytest", "-q", "-n", "4", "--dist", "worksteal", "-m", "not timing", "-p", "mutants"]
    command += ["--cov", str(PACKAGE), "--cov-context=test", "--cov-report="]
    subprocess.run(command, check=False, env={**_environment(), "COVERAGE_FILE": str(RESULTS / "coverage")})


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}


class Reached:
    """A plugin of pytest: duration of each test, and the scripts that it calls."""

    def __init__(self) -> None:
        self.scripts: set[str] = set()
        self.tests: dict[str, Any] = {}

    def pytest_runtest_makereport(self, item: Any, call: Any) -> None:
        if call.when == "teardown":
            item.user_properties.append(("scripts", sorted(self.scripts)))
            self.scripts.clear()

    def pytest_runtest_logreport(self, report: Any) -> None:
        one = self.tests.setdefault(report.nodeid, {"seconds": 0.0, "scripts": []})
        one["seconds"] = round(one["seconds"] + report.duration, 3)
        for name, value in report.user_properties:
            if name == "scripts":
                one["scripts"] = value

    def pytest_sessionfinish(self, session: Any) -> None:
        if not hasattr(session.config, "workerinput"):
            (RESULTS / "tests.json").write_text(json.dumps(self.tests))


def pytest_configure(config: Any) -> None:
    if not RESULTS.exists() or "MUTANT" in _environment():
        return
    from django_redis_messaging.core import commands

    reached, init = Reached(), commands.Script.__init__

    def noting(self: Any, name: str, *args: Any, **options: Any) -> None:
        reached.scripts.add(name)
        init(self, name, *args, **options)

    commands.Script.__init__ = noting  # type: ignore[method-assign]
    config.pluginmanager.register(reached)


class Map:
    """Which tests reach a line of Python, or a script."""

    def __init__(self) -> None:
        import sqlite3

        self.tests = json.loads((RESULTS / "tests.json").read_text())
        self.by_script: dict[str, set[str]] = defaultdict(set)
        for nodeid, one in self.tests.items():
            for script in one["scripts"]:
                self.by_script[script].add(nodeid)
        self._database = sqlite3.connect(RESULTS / "coverage")

    def of(self, mistake: dict[str, str], line: int) -> list[str]:
        found = self._of_lua(mistake["file"]) if mistake["file"].endswith(".lua") else self._of_line(mistake["file"], line + 1)
        fitting = [nodeid for nodeid in found if nodeid in self.tests and not EXCEPT.search(nodeid)]
        folder = Path(mistake["file"]).parent.name
        fitting.sort(key=lambda nodeid: (f"tests/{folder}/" not in nodeid, self.tests[nodeid]["seconds"]))
        chosen, spent = [], 0.0
        for nodeid in fitting[:MOST]:
            spent += self.tests[nodeid]["seconds"]
            if spent > BUDGET:
                break
            chosen.append(nodeid)
        return chosen

    def _of_lua(self, file: str) -> set[str]:
        from django_redis_messaging.core.commands import pieces

        name = file.removeprefix(f"{PACKAGE}/").removeprefix("services/")
        using = {script for script in self.by_script if name in {f"{script}.lua", *pieces(f"{script}.lua")}}
        return {nodeid for script in using for nodeid in self.by_script[script]}

    def _of_line(self, file: str, line: int) -> set[str]:
        query = (
            "select context.context from arc join file on file.id = arc.file_id join context on context.id = "
            "arc.context_id where file.path like ? and (arc.tono = ? or arc.fromno = ?)"
        )
        found = self._database.execute(query, (f"%/{file}", line, line))
        return {context.partition("|")[0] for (context,) in found if context}


def run() -> None:
    results_file = RESULTS / "results.json"
    results = json.loads(results_file.read_text()) if results_file.exists() else {}
    known = Map()
    for at, mistake in enumerate(json.loads(SAMPLE.read_text())):
        if str(at) in results:
            continue
        began, line, path = time.monotonic(), place(mistake), Path(mistake["file"])
        if line is None:
            results[at] = {"outcome": "gone"}
        elif not (tests := known.of(mistake, line)):
            results[at] = {"outcome": "not reached"}
        else:
            before = path.read_text()
            lines = before.split("\n")
            lines[line] = mistake["new"]
            path.write_text("\n".join(lines))
            try:
                results[at] = _try(tests)
            finally:
                path.write_text(before)
        results[at]["seconds"] = round(time.monotonic() - began)
        results_file.write_text(json.dumps(results, indent=1))
        print(at, mistake["file"], mistake["function"], results[at], flush=True)


def _try(tests: list[str]) -> dict[str, Any]:
    command = ["uv", "run", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", "--timeout", "60", *tests]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=5 * BUDGET, env={**_environment(), "MUTANT": "1"})
    except subprocess.TimeoutExpired:
        return {"outcome": "caught", "by": "timeout"}
    if ended.returncode == 0:
        return {"outcome": "survived", "tests": len(tests)}
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", ended.stdout, re.M)
    return {"outcome": "caught", "by": failed[1] if failed else ended.stdout[-300:] + ended.stderr[-300:]}


def show() -> None:
    results = json.loads((RESULTS / "results.json").read_text())
    sample = json.loads(SAMPLE.read_text())
    print(Counter((sample[int(at)]["file"][-3:], one["outcome"]) for at, one in results.items()))
    for at, one in results.items():
        if one["outcome"] != "caught":
            mistake = sample[int(at)]
            print(f"{at}: {one['outcome']} {mistake['file']} {mistake['function']}\n  - {mistake['old']}\n  + {mistake['new']}")


if __name__ == "__main__":
    sys.path.insert(0, "")
    {"draw": draw, "map": record, "run": run, "show": show}[sys.argv[1]]()
