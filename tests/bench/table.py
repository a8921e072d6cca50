"""The results as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.bench.cases import HERE
from tests.bench.suite import GroupResult, RowResult, python_version

MARKS = {True: "yes", False: "NO", None: ""}


def table(results: Iterable[GroupResult]) -> str:
    """One line a row: median, least and most, target."""
    return "\n".join(line for result in results for line in _group(result))


def _group(result: GroupResult) -> Iterator[str]:
    yield result.title
    if result.python != HERE:
        yield f"  (all of it with {python_version(result.python)}, which has the backends)"
    for row in result.rows:
        yield _row(row)
    if len(result.mbit_s) > 1:
        figures = ", ".join(f"{name} {value:.0f}" for name, value in result.mbit_s.items())
        yield f"  (Mbit/s, only to compare within this group: {figures})"
    for case, lacks in result.missing.items():
        yield f"  {case} was left out: it needs {lacks}"
    yield ""


def _row(result: RowResult) -> str:
    row, values = result.row, result.values
    target = ""
    if row.target is not None:
        target = f"{'<=' if row.at_most else '>='} {row.target:g}"
    spread = f"{min(values):.2f} - {max(values):.2f}"
    return (
        f"  {row.title:56}{result.median:7.2f} {row.unit:16}{spread:16}"
        f"{target:9}{MARKS[result.met]}"
    ).rstrip()
