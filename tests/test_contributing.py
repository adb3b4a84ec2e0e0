"""The worked example of CONTRIBUTING.md: typed into a copy of the repository as it is shown, it works."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .support.processes import outside_of_tests
from .support.typed_files import BLOCK, Block, place, type_in

ROOT = Path(__file__).parent.parent
GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SECTION = re.compile(r"^## How to add a service\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
#: seconds that the tests of the example may take, even on a busy machine
PATIENCE = 300
#: least number of tests that concern the example: its own, and those of script, keys and page
MIN_TESTS = 15
PYTEST = ("-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider")
#: parts of the names of tests, or of their parameters, that concern the example
CONCERNED = ("signup", "test_all_keys_differ", "every_imported_name", "TestFolders")
#: most places that a new service may touch
MAX_PLACES = 7


def example() -> tuple[str, list[Block]]:
    """The commands that prepare the folders, and the blocks of files."""
    section = SECTION.search(GUIDE)
    assert section is not None
    text = section[1].partition("### A complete example")[2]
    blocks: list[Block] = []
    commands, end = "", 0
    for block in BLOCK.finditer(text):
        if block[2] == "sh":
            commands += block[3]
        else:
            paragraph = text[end : block.start()].rstrip().rpartition("\n\n")[2]
            blocks.append(Block(place(paragraph), block[2], block[3]))
        end = block.end()
    return commands, blocks


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository with the example."""
    root = tmp_path_factory.mktemp("example") / "repository"
    # with the compiled modules, as long as these are the newer ones
    ignored = shutil.ignore_patterns("*.po", "*.png")
    for folder in ("django_redis_messaging", "tests", "docs"):
        shutil.copytree(ROOT / folder, root / folder, ignore=ignored)
    for path in [ROOT / "pyproject.toml", *ROOT.glob("*.md")]:
        shutil.copy(path, root)
    commands, blocks = example()
    subprocess.run(["sh", "-ec", commands], cwd=root, check=True)
    for block in blocks:
        type_in(block, root)
    return root


def run(root: Path, *words: str) -> str:
    """Run Python in the copy, outside of this run of tests; returns the output."""
    done = subprocess.run(
        [sys.executable, *words], cwd=root, env={**outside_of_tests(), "PYTHONPATH": str(root)},
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    return output


@pytest.mark.timeout(PATIENCE + 20)
def test_example_works(repository: Path) -> None:
    """Its own tests, and those of the package that concern it."""
    chosen = ("tests/signups", "tests/test_package.py", "tests/test_docs.py", "tests/core/test_keys.py")
    output = run(repository, *PYTEST, *chosen, "-k", " or ".join(CONCERNED))
    passed = re.search(r"^(\d+) passed", output, re.MULTILINE)
    assert passed and int(passed[1]) > MIN_TESTS, output


def test_example_has_the_style_of_the_house(repository: Path) -> None:
    paths = [str(repository / block.path) for block in example()[1] if block.path.endswith(".py")]
    ruff = shutil.which("ruff")
    if ruff is None:
        pytest.skip("ruff is not installed")
    for words in (["check", "--no-cache"], ["format", "--check", "--no-cache"]):
        done = subprocess.run(
            [ruff, *words, *paths], cwd=repository, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_service_touches_few_places() -> None:
    places = re.findall(r"^\| (\d+) \| `", GUIDE, re.MULTILINE)
    assert places == [str(number) for number in range(1, len(places) + 1)]
    assert 3 < len(places) <= MAX_PLACES
    assert len({block.path for block in example()[1]}) <= MAX_PLACES


def test_numbers_of_blocks_are_those_of_the_table() -> None:
    """The place of each numbered block is the one of its row."""
    rows = dict(re.findall(r"^\| (\d+) \| `([\w./]+)`", GUIDE, re.MULTILINE))
    numbered = re.findall(r"^(\d+): `([\w./]+)`", GUIDE, re.MULTILINE)
    assert len(numbered) == len(rows) - 1
    for number, path in numbered:
        assert path.endswith(rows[number])


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        (Block("taken.py", "python", "x = 1\n"), "exists"),
        (Block("taken.py", "diff", "+x = 1\n"), "begins with a line of the file"),
        (Block("taken.py", "diff", " y = 2\n+x = 1\n"), "has 0 lines"),
        (Block("taken.py", "diff", " z = 3\n+x = 1\n"), "has 2 lines"),
        (Block("taken.py", "diff", "-y = 2\n"), "has 0 lines"),
    ],
)
def test_blocks_without_a_definite_place_are_refused(block: Block, problem: str, tmp_path: Path) -> None:
    (tmp_path / "taken.py").write_text("z = 3\nz = 3\n")
    with pytest.raises(AssertionError, match=problem):
        type_in(block, tmp_path)
