"""SECURITY.md and tests/security agree on what is promised."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
HERE = Path(__file__).resolve().parent


def promised() -> list[str]:
    """The names of the promises, in the order of the page."""
    page = (ROOT / "SECURITY.md").read_text("utf-8")
    return re.findall(r"^- \*\*(S[0-9]+)\. ", page, re.MULTILINE)


def shown() -> set[str]:
    """Those that the docstring of a test begins with."""
    found: set[str] = set()
    for path in HERE.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
                "test_"
            ):
                found.update(re.findall(r"^S[0-9]+", ast.get_docstring(node) or ""))
    return found


def test_every_promise_has_a_test_and_every_test_a_promise() -> None:
    names = promised()
    assert names == [f"S{number + 1}" for number in range(len(names))]
    assert len(names) >= 14
    assert set(names) == shown()


def test_what_a_relay_sees_and_how_to_report_is_said() -> None:
    page = (ROOT / "SECURITY.md").read_text("utf-8")
    for heading in ("Not yet", "What a relay sees in any case", "Reporting", "Supported versions"):
        assert f"\n## {heading}\n" in page
