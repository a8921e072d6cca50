"""docs/conformance.md has a row for each requirement, and a row that claims something can prove it."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
COUNTS = {"N": 6, "G": 8, "O": 8, "M": 10, "P": 6, "C": 10, "R": 4, "X": 5}
IDS = {f"{letter}{n}" for letter, count in COUNTS.items() for n in range(1, count + 1)}
STATES = {"done", "partly", "later"}
ROW = re.compile(r"^\|\s*([A-Z]\d+)\s*\|(.*)\|\s*$", re.MULTILINE)
FILE = re.compile(r"`([\w.-]+(?:/[\w.-]+)+)`")


def docstrings(path: Path) -> str:
    """The docstrings of a test file's tests and classes, one text."""
    definitions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    nodes = (n for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, definitions))
    return "\n".join(ast.get_docstring(node) or "" for node in nodes)


def faults(text: str, root: Path) -> Iterator[str]:
    """What is wrong with the table in `text`, whose files are looked for under `root`."""
    rows = ROW.findall(text)
    listed = Counter(identifier for identifier, _ in rows)
    yield from (f"{identifier} has no row" for identifier in sorted(IDS - listed.keys()))
    yield from (f"{identifier} is unknown" for identifier in sorted(listed.keys() - IDS))
    yield from (f"{identifier} has {n} rows" for identifier, n in listed.items() if n > 1)
    for identifier, rest in rows:
        cells = [cell.strip() for cell in rest.split("|")]
        if len(cells) != 4:
            yield f"{identifier} has {len(cells) + 1} columns"
            continue
        _, code, tests, state = cells
        if state not in STATES:
            yield f"{identifier}: what is the state {state!r}?"
        if state in {"done", "partly"}:
            yield from (
                f"{identifier}: {fault}" for fault in unproven(identifier, code, tests, root)
            )


def unproven(identifier: str, code: str, tests: str, root: Path) -> Iterator[str]:
    named, proofs = FILE.findall(code), FILE.findall(tests)
    yield from (f"{name} does not exist" for name in named + proofs if not (root / name).exists())
    if not named:
        yield "names no code"
    if not proofs:
        yield "names no test"
    for name in proofs:
        proof = root / name
        if proof.is_file() and not re.search(rf"\b{identifier}\b", docstrings(proof)):
            yield f"{name} has no test that names it"


def test_the_table_holds() -> None:
    found = list(faults((ROOT / "docs/conformance.md").read_text("utf-8"), ROOT))
    assert not found, "\n".join(found)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "kvcs").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "kvcs/naming.py").write_text("")
    (tmp_path / "tests/test_naming.py").write_text('def test_x() -> None:\n    """N1, N10."""\n')
    (tmp_path / "tests/test_other.py").write_text("# N1\nN1 = 1\n")
    return tmp_path


TABLE = "\n".join(f"| {identifier} | short | | | later |" for identifier in sorted(IDS - {"N1"}))
CODE, PROOF = "`kvcs/naming.py`", "`tests/test_naming.py`"


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        (f"| N1 | short | {CODE} | {PROOF} | done |", None),
        ("| N1 | short | — | — | later |", None),
        ("", "N1 has no row"),
        ("| N1 | short | | | later |\n| N7 | short | | | later |", "N7 is unknown"),
        ("| N1 | short | | | later |\n| N1 | short | | | later |", "N1 has 2 rows"),
        ("| N1 | short | | later |", "N1 has 4 columns"),
        ("| N1 | short | | | nearly |", "N1: what is the state 'nearly'?"),
        (f"| N1 | short | — | {PROOF} | done |", "N1: names no code"),
        (f"| N1 | short | {CODE} | — | partly |", "N1: names no test"),
        (f"| N1 | short | `kvcs/x.py` | {PROOF} | done |", "N1: kvcs/x.py does not exist"),
        (
            f"| N1 | short | {CODE} | `tests/test_other.py` | done |",
            "N1: tests/test_other.py has no test that names it",
        ),
    ],
)
def test_a_fault_is_found(row: str, fault: str | None, tree: Path) -> None:
    assert list(faults(f"{TABLE}\n{row}\n", tree)) == ([fault] if fault else [])
