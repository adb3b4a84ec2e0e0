"""Checks the tests with a fixed sample of small mistakes. Each is made in the package, one at a time; the
tests that reach the changed line must fail.

    python .ci/mutants.py draw    draw the sample anew, into mutants.json
    python .ci/mutants.py map     run the deterministic tests, and record which of them reaches what
    python .ci/mutants.py try     try each mistake that has no result yet
    python .ci/mutants.py again   try those that survived again, with more tests
    python .ci/mutants.py show    print the results

Records and results are in .mutants/ of the current directory. A mistake is stored as file, function, old line
and new line, so that it outlives changes elsewhere; one whose line has gone is reported. One that changes
nothing that callers see says why ("equivalent"); one that only tests marked `timing` notice, or tests
that reach it once in each process, says which ("noticed_by").
"""
# ruff: noqa: S311, S603, T201

from __future__ import annotations

import ast
import json
import os
import random
import re
import sqlite3
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

PACKAGE = Path("django_redis_messaging")
SAMPLE = Path(__file__).with_name("mutants.json")
RECORDS = Path(".mutants")
#: the seed of the sample, and its number of mistakes in each language
SEED, EACH = 45, 75
#: tests that compare texts and counts of the code, or make mistakes themselves
EXCEPT = re.compile(r"test_package|test_budgets|test_public|bug|planted|in_a_script|changes_a_line|mistakes")
BOTH = {
    " < ": " <= ", " <= ": " < ", " > ": " >= ", " >= ": " > ", " and ": " or ", " or ": " and ",
    " + ": " - ", " - ": " + ", "0": "1", "1": "2", "2": "3",
}  # fmt: skip
SWAPS = {
    ".py": BOTH | {
        " == ": " != ", " != ": " == ", " not in ": " in ", " is not ": " is ", "if not ": "if ",
        "min(": "max(", "max(": "min(", "any(": "all(", "all(": "any(", "True": "False", "False": "True",
        "[0]": "[-1]", "[-1]": "[0]", "[1:]": "[:]", "return ": "return None and ", "yield from ": "() and ",
        " if ": " if not ", "while ": "while not ",
    },
    ".lua": BOTH | {
        " == ": " ~= ", " ~= ": " == ", "not ": "", "math.min": "math.max", "math.max": "math.min",
        "return ": "return nil and ", "true": "false", "false": "true",
        "  redis.call": "  local _ = {} or redis.call",
    },
}  # fmt: skip
Mistake = dict[str, str]
#: keys of mistakes that the tests chosen here need not notice
REASONS = ("equivalent", "noticed_by")


class Choice(NamedTuple):
    """Which of the tests that reach a mistake run."""

    #: their duration when they were recorded, at most: seconds
    seconds: float
    #: their maximum number
    most: int
    #: how many run at a time
    workers: int


FIRST, AGAIN = Choice(60.0, 300, 1), Choice(300.0, 3000, 2)


def functions(path: Path) -> Iterator[tuple[str, int, int]]:
    """Name, first line and end (from 0) of each function's body; in Lua also of what is below them, as ""."""
    text = path.read_text()
    if path.suffix == ".py":
        yield from _methods(ast.parse(text), "")
        return
    end = -1
    for found in re.finditer(r"^local function (\w+).*?^end$", text, re.M | re.S):
        end = text.count("\n", 0, found.end())
        yield found[1], text.count("\n", 0, found.start()) + 1, end
    if not path.name.startswith("_"):
        yield "", end + 1, text.count("\n")


def _methods(node: ast.AST, prefix: str) -> Iterator[tuple[str, int, int]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and child.end_lineno:
            body = child.body[1:] if ast.get_docstring(child) is not None else child.body
            if body:
                yield prefix + child.name, body[0].lineno - 1, child.end_lineno
        elif isinstance(child, ast.ClassDef):
            yield from _methods(child, f"{prefix}{child.name}.")


def changes(body: list[str], old: str, new: str) -> list[tuple[str, str]]:
    """Each line in which a text can be replaced, and the new line."""
    made = []
    for line in body:
        code = line.split("  # ")[0].split(" -- ")[0]
        if body.count(line) > 1 or code.strip().startswith(("--", "#", '"', "raise ", 'f"', "logger.")):
            continue
        for found in re.finditer(re.escape(old), code):
            begin, end = found.span()
            around = line[max(begin - 1, 0) : begin] + (line[end : end + 1] if old.isdigit() else "")
            if not (old[0].isalnum() and re.search(r"[\w.'\"]", around)):
                made.append((line, line[:begin] + new + line[end:]))
    return made


def is_valid(path: Path, old: str, new: str) -> bool:
    text = path.read_text()
    if text.count(f"\n{old}\n") != 1:
        return False
    try:
        return path.suffix == ".lua" or bool(ast.parse(text.replace(f"\n{old}\n", f"\n{new}\n")))
    except SyntaxError:
        return False


def draw() -> None:
    """Draw functions evenly, one mistake of each, and each kind of mistake equally often."""
    sample: list[Mistake] = []
    for suffix in (".lua", ".py"):
        rng = random.Random(f"{SEED} {suffix[1:]}")
        paths = sorted(PACKAGE.rglob(f"*{suffix}"))
        places = [(path, *function) for path in paths for function in functions(path)]
        rng.shuffle(places)
        drawn: list[Mistake] = []
        for path, name, begin, end in places:
            kinds = list(SWAPS[suffix].items())
            rng.shuffle(kinds)
            body = path.read_text().split("\n")[begin:end]
            made = [changes(body, old, new) for old, new in kinds]
            shuffled = [change for found in made for change in rng.sample(found, len(found))]
            valid = ((old, new) for old, new in shuffled if is_valid(path, old, new))
            if len(drawn) < EACH and (change := next(valid, None)):
                drawn.append({"file": str(path), "function": name, "old": change[0], "new": change[1]})
        sample += drawn
    SAMPLE.write_text(json.dumps(sample, indent=1, ensure_ascii=False) + "\n")


def line_of(mistake: Mistake) -> int | None:
    """Where a mistake is made (from 0), if that line is still there."""
    path = Path(mistake["file"])
    lines = path.read_text().split("\n") if path.exists() else []
    for name, begin, end in functions(path) if lines else ():
        if name == mistake["function"] and lines[begin:end].count(mistake["old"]) == 1:
            return begin + lines[begin:end].index(mistake["old"])
    return None


def pytest(*words: str, timeout: float | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["uv", "run", "pytest", "-q", "-n", "0", "-rfE", "-p", "no:cacheprovider", *words]
    variables = {**os.environ, "PYTHONPATH": str(SAMPLE.parent), **environment}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, env=variables, check=False
    )


class Recorder:
    """A plugin of pytest that records the duration of each test, and the scripts that it calls."""

    def __init__(self) -> None:
        self.scripts: set[str] = set()
        self.tests: dict[str, Any] = {}

    def pytest_runtest_makereport(self, item: Any, call: Any) -> None:
        if call.when == "teardown":
            item.user_properties.append(("scripts", sorted(self.scripts)))
            self.scripts.clear()

    def pytest_runtest_logreport(self, report: Any) -> None:
        test = self.tests.setdefault(report.nodeid, {"seconds": 0.0})
        test["seconds"] = round(test["seconds"] + report.duration, 3)
        test |= {name: value for name, value in report.user_properties if name == "scripts"}

    def pytest_sessionfinish(self, session: Any) -> None:
        if not hasattr(session.config, "workerinput"):
            (RECORDS / "tests.json").write_text(json.dumps(self.tests))


def pytest_configure(config: Any) -> None:
    """Called where this module is a plugin."""
    from django_redis_messaging.core import commands

    recorder, init = Recorder(), commands.Script.__init__

    def recording(script: Any, name: str, *args: Any, **options: Any) -> None:
        recorder.scripts.add(name)
        init(script, name, *args, **options)

    commands.Script.__init__ = recording  # type: ignore[assignment, method-assign]
    config.pluginmanager.register(recorder)


def record() -> None:
    RECORDS.mkdir(exist_ok=True)
    words = ["-n", "4", "--dist", "worksteal", "-m", "not timing", "-p", "mutants"]
    words += ["--cov", str(PACKAGE), "--cov-context=test", "--cov-report="]
    print(pytest(*words, COVERAGE_FILE=str(RECORDS / "coverage"), COVERAGE_CORE="ctrace").stdout[-2000:])


class Records:
    """Which tests reach a line of Python, or a script."""

    def __init__(self) -> None:
        self.tests = json.loads((RECORDS / "tests.json").read_text())
        self.by_script: dict[str, set[str]] = defaultdict(set)
        for nodeid, test in self.tests.items():
            for script in test.get("scripts", ()):
                self.by_script[script].add(nodeid)
        self.coverage = sqlite3.connect(RECORDS / "coverage")

    def tests_for(self, mistake: Mistake, line: int, choice: Choice) -> list[str]:
        """The tests of the same folder first, and the fast ones; again: the fastest of each module first."""
        file = mistake["file"]
        reached = self._calling(file) if file.endswith(".lua") else self._reaching(file, line + 1)
        fitting = [nodeid for nodeid in reached if nodeid in self.tests and not EXCEPT.search(nodeid)]
        folder = f"tests/{Path(file).parent.name}/"
        fitting.sort(key=lambda nodeid: (folder not in nodeid, self.tests[nodeid]["seconds"]))
        if choice is AGAIN:
            seen: Counter[str] = Counter()
            ranks: dict[str, int] = {}
            for nodeid in fitting:
                module = nodeid.partition("::")[0]
                ranks[nodeid] = seen[module]
                seen[module] += 1
            fitting.sort(key=lambda nodeid: ranks[nodeid])
        chosen, seconds = [], 0.0
        for nodeid in fitting[: choice.most]:
            seconds += self.tests[nodeid]["seconds"]
            if seconds < choice.seconds:
                chosen.append(nodeid)
        return chosen

    def _calling(self, file: str) -> set[str]:
        from django_redis_messaging.core.commands import path_of, pieces

        name = file.removeprefix(f"{PACKAGE}/").removeprefix("services/")
        scripts = [script for script in self.by_script if path_of(f"{script}.lua").is_file()]
        using = [script for script in scripts if name in (f"{script}.lua", *pieces(f"{script}.lua"))]
        return {nodeid for script in using for nodeid in self.by_script[script]}

    def _reaching(self, file: str, line: int) -> set[str]:
        query = (
            "select context.context from arc join file on file.id = arc.file_id join context on "
            "context.id = arc.context_id where file.path like ? and (arc.tono = ? or arc.fromno = ?)"
        )
        found = self.coverage.execute(query, (f"%/{file}", line, line))
        return {context.partition("|")[0] for (context,) in found if context}


def try_all() -> None:
    _try(FIRST, lambda earlier: not earlier)


def try_again() -> None:
    _try(AGAIN, lambda earlier: earlier.get("outcome") == "survived" and not earlier.get("again"))


def _try(choice: Choice, is_wanted: Callable[[dict[str, Any]], bool]) -> None:
    file, records = RECORDS / "results.json", Records()
    results = json.loads(file.read_text()) if file.exists() else {}
    for number, mistake in enumerate(json.loads(SAMPLE.read_text())):
        if not is_wanted(results.get(str(number), {})):
            continue
        line = line_of(mistake)
        tests = [] if line is None else records.tests_for(mistake, line, choice)
        began = time.monotonic()
        result: dict[str, Any] = {"outcome": "gone" if line is None else "not reached"}
        if line is not None and tests:
            result = try_one(mistake, line, tests, choice)
        result |= {"seconds": round(time.monotonic() - began), "again": choice is AGAIN}
        results[str(number)] = result
        file.write_text(json.dumps(results, indent=1))
        print(number, mistake["file"], mistake["function"], result, flush=True)


def try_one(mistake: Mistake, line: int, tests: list[str], choice: Choice) -> dict[str, Any]:
    path = Path(mistake["file"])
    before = path.read_text()
    lines = before.split("\n")
    lines[line] = mistake["new"]
    path.write_text("\n".join(lines))
    try:
        words = ["-n", str(choice.workers)] if choice.workers > 1 else []
        ended = pytest("-x", "--timeout", "60", *words, *tests, timeout=5 * choice.seconds)
    except subprocess.TimeoutExpired:
        return {"outcome": "caught", "by": "the timeout"}
    finally:
        path.write_text(before)
    if ended.returncode == 0:
        return {"outcome": "survived", "tests": len(tests)}
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", ended.stdout, re.M)
    return {"outcome": "caught", "by": failed[1] if failed else (ended.stdout + ended.stderr)[-300:]}


def show() -> None:
    results, sample = json.loads((RECORDS / "results.json").read_text()), json.loads(SAMPLE.read_text())
    for number, result in results.items():
        mistake = sample[int(number)]
        if result["outcome"] in ("survived", "not reached"):
            result["outcome"] = next((key for key in REASONS if key in mistake), result["outcome"])
        if result["outcome"] not in ("caught", *REASONS):
            print(f"{number}: {result['outcome']}: {mistake['file']} {mistake['function']}")
            print(f"  - {mistake['old']}\n  + {mistake['new']}")
    print(Counter((Path(sample[int(at)]["file"]).suffix, one["outcome"]) for at, one in results.items()))


if __name__ == "__main__":
    sys.path.insert(0, "")
    commands = {"draw": draw, "map": record, "try": try_all, "again": try_again, "show": show}
    commands[sys.argv[1]]()
