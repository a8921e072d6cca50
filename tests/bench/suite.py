"""Runs groups of cases in interleaved rounds and computes their rows."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kvcs import certs
from kvcs.bench.plan import Plan, scratch
from kvcs.bench.runner import prepare
from tests.bench.cases import HERE, OTHER_PYTHON, Case, Group, Row, Through, program, throughput
from tests.bench.processes import Numbers, run_pair, run_program, run_relayed

Say = Callable[[str], None]


@dataclass(frozen=True)
class RowResult:
    """A row with its figure of each round."""

    row: Row
    values: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None without one."""
        target = self.row.target
        if target is None:
            return None
        return self.median <= target if self.row.at_most else self.median >= target

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.row.title,
            "median": round(self.median, 4),
            "values": [round(value, 4) for value in self.values],
            "unit": self.row.unit,
            "target": self.row.target,
            "at_most": self.row.at_most,
            "met": self.met,
        }


@dataclass(frozen=True)
class GroupResult:
    """A group's rounds, its rows, and what was left out for want of something."""

    name: str
    title: str
    rounds: list[dict[str, Numbers]]
    rows: list[RowResult]
    missing: dict[str, str]
    python: str = HERE
    """The interpreter that ran it."""

    @property
    def mbit_s(self) -> dict[str, float]:
        """The median throughput of each case."""
        return {
            name: statistics.median(throughput(r[name]) for r in self.rounds)
            for name in (self.rounds[0] if self.rounds else ())
        }

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "rows": [row.to_json() for row in self.rows],
            "mbit_s": {name: round(value, 1) for name, value in self.mbit_s.items()},
            "missing": self.missing,
            "python": python_version(self.python),
            "rounds": self.rounds,
        }


def run_suite(
    groups: Mapping[str, Group], *, rounds: int, quick: bool, say: Say
) -> list[GroupResult]:
    """Runs the groups one after another. Raises RunFailed, or what `kvcs bench` raises."""
    results = []
    with tempfile.TemporaryDirectory(prefix="kvcs-bench-", dir=scratch()) as directory:
        runner = _Runner(directory, quick=quick)
        for name, group in groups.items():
            say(group.title)
            results.append(runner.group(name, group, min(rounds, group.rounds or rounds), say))
    return results


def run_through(plan: Plan, case: Case, relay: Through) -> Numbers:
    """Runs a case that has a relay."""
    name, *words = (word.replace("{directory}", plan.directory) for word in relay.command)
    command = [program(name) or name, *words]
    return run_relayed(plan, case.server, case.client, command, relay.ready)


class _Runner:
    def __init__(self, directory: str, *, quick: bool) -> None:
        self._directory = directory
        self._quick = quick
        self._prepared: tuple[int, int] | None = None
        certs.make(Path(directory))

    def group(self, name: str, group: Group, rounds: int, say: Say) -> GroupResult:
        python = group.python()
        if python != HERE:
            say(f"  with {OTHER_PYTHON.parent.parent.name}, {python_version(python)}")
        missing = {
            case: lacks for case, c in group.cases.items() if (lacks := self._lacks(c, python))
        }
        present = {case: c for case, c in group.cases.items() if case not in missing}
        rows = [row for row in group.rows if not set(row.needs) & set(missing)]
        needed = {case for row in rows for case in row.needs}
        done: list[dict[str, Numbers]] = []
        for number in range(rounds if rows else 0):
            done.append(
                {case: self._run(present[case], python) for case in present if case in needed}
            )
            values = ", ".join(f"{row.title} {row.figure(done[-1]):.2f}" for row in rows)
            say(f"  round {number + 1}: {values}")
        results = [RowResult(row, [row.figure(r) for r in done]) for row in rows]
        return GroupResult(name, group.title, done, results, missing, python)

    def _lacks(self, case: Case, python: str) -> str | None:
        return "a full run" if self._quick and not case.in_quick else case.lacks(python)

    def _run(self, case: Case, python: str) -> Numbers:
        if case.command:
            name, *arguments = (part.format(directory=self._directory) for part in case.command)
            return run_program([program(name) or name, *arguments], case.pattern, self._directory)
        plan = case.plan(self._directory, quick=self._quick)
        if case.relay is not None:
            return run_through(plan, case, case.relay)
        if case.server.startswith("publish"):
            self._prepare(plan)
        plan.check()
        return run_pair(plan, case.server, case.client, python=python)

    def _prepare(self, plan: Plan) -> None:
        """Writes the cache file unless it is the one that is there."""
        shape = plan.size_mib, plan.object_kib
        if self._prepared != shape:
            prepare(replace(plan, options={}))
            self._prepared = shape


@cache
def python_version(python: str) -> str:
    """Python 3.12.1, say."""
    ran = subprocess.run(  # noqa: S603 - an interpreter of ours
        [python, "-V"], stdout=subprocess.PIPE, text=True, check=True
    )
    return ran.stdout.strip()


def environment(*, quick: bool, rounds: int) -> dict[str, Any]:
    """What the figures were had on."""
    return {
        "quick": quick,
        "rounds": rounds,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "aioquic": version("aioquic"),
    }
