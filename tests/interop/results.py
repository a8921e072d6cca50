"""The table of results: on the terminal, and in docs/interop.md."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

START, END = "<!-- results -->", "<!-- end of results -->"
HEAD = "| peer | scenario | result |\n|---|---|---|"
_BETWEEN = re.compile(f"{re.escape(START)}.*?{re.escape(END)}", re.DOTALL)


@dataclass(frozen=True, order=True)
class Result:
    """One scenario."""

    peer: str
    scenario: str
    passed: bool


def table(results: list[Result]) -> str:
    """Markdown, in the order of the results."""
    rows = [f"| {r.peer} | {r.scenario} | {'pass' if r.passed else 'FAIL'} |" for r in results]
    return "\n".join([HEAD, *rows])


def write(page: Path, results: list[Result]) -> None:
    """Puts the table into its place on the page, which stays as it is when the results are what they were."""
    text = page.read_text("utf-8")
    assert _BETWEEN.search(text), f"{page} has no place for the results"
    shown = f"{START}\n{table(results)}\n{END}"
    changed = _BETWEEN.sub(lambda _: shown, text)
    if changed != text:
        page.write_text(changed, "utf-8")
