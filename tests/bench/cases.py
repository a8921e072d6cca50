"""The words that the table of rows is written in: cases that are run, rows that are computed from them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kvcs.bench.plan import Plan
from kvcs.loops import chosen
from moqt import TransportConfig
from tests.bench.processes import Numbers

ROOT = Path(__file__).resolve().parent.parent.parent
PEERS = "KVCS_BENCH_PEERS"
"""Names a directory with programs of other projects; without it the one that `make bench` installs them in."""
PEERS_HERE = ROOT / ".venv-interop" / "bin"
OTHER_PYTHON = ROOT / ".venv-backends" / "bin" / "python"
"""Has the optional backends, and may be newer than this one; `make bench` installs it."""
HERE = sys.executable


@dataclass(frozen=True)
class Through:
    """A relay; its words have {directory} where certificates lie, and {port} for where it is to listen."""

    command: tuple[str, ...]
    ready: str
    """What it prints when it listens."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Something to run: two roles over one cache, or with a relay between them, or a program of another project."""

    server: str = "publish"
    client: str = "subscribe"
    mtu: int = 1452
    object_kib: int = 32
    size: int = 128
    """MiB."""
    quick_size: int = 16
    in_quick: bool = True
    """Whether a quick run has it."""
    backend: str = "aioquic"
    loop: str = field(default_factory=chosen)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Changes to the TransportConfig."""
    options: Mapping[str, Any] = field(default_factory=dict)
    quick_options: Mapping[str, Any] = field(default_factory=dict)
    """What is different in a quick run."""
    relay: Through | None = None
    command: tuple[str, ...] = ()
    """With {directory} where certificates lie; then the roles do not matter."""
    pattern: str = ""

    def plan(self, directory: str, *, quick: bool) -> Plan:
        """What its processes are told."""
        options = dict(self.options) | (dict(self.quick_options) if quick else {})
        return Plan(
            directory=directory,
            backend=self.backend,
            mtu=self.mtu,
            size_mib=self.quick_size if quick else self.size,
            object_kib=self.object_kib,
            loop=self.loop,
            settings=dict(self.settings),
            options=options,
        )

    def lacks(self, python: str = HERE) -> str | None:
        """What has to be installed before it can run with that interpreter; None if nothing."""
        needed = self.command or (self.relay.command if self.relay else ())
        if needed and program(needed[0]) is None:
            return f"{needed[0]} (see {PEERS})"
        if self.command:
            return None
        unknown = set(self.settings) - {f.name for f in fields(TransportConfig)}
        if unknown:
            return f"the setting {', '.join(sorted(unknown))}"
        if self.loop != "asyncio" and find_spec(self.loop) is None:
            return self.loop
        return None if usable(self.backend, python) else f"the backend {self.backend}"


def program(name: str) -> str | None:
    """Where a program of another project is."""
    return shutil.which(name, path=os.environ.get(PEERS) or str(PEERS_HERE)) or shutil.which(name)


@cache
def usable(name: str, python: str = HERE) -> bool:
    """Whether an interpreter has a backend."""
    asked = f"import sys; from kvcs.cli.transport import backend; backend({name!r})"
    return not subprocess.run(  # noqa: S603 - an interpreter of ours
        [python, "-c", asked], cwd=ROOT, capture_output=True, check=False
    ).returncode


Round = Mapping[str, Numbers]
"""What the cases of a group came to in one round."""
Figure = Callable[[Round], float]


@dataclass(frozen=True)
class Row:
    """One figure, computed from each round; its median is what counts."""

    title: str
    figure: Figure
    needs: tuple[str, ...]
    """Cases."""
    target: float | None = None
    at_most: bool = False
    """The target is an upper bound."""
    unit: str = "×"


@dataclass(frozen=True)
class Group:
    """Cases that are run in turn, round after round, and the rows that compare them."""

    title: str
    cases: Mapping[str, Case]
    rows: tuple[Row, ...]
    rounds: int | None = None
    """Where the suite's number is more than is needed."""

    def python(self) -> str:
        """The interpreter of all its cases: the other one where that has a backend that this one lacks."""
        backends = {case.backend for case in self.cases.values() if not case.command}
        lacking = (name for name in backends if not usable(name))
        other = str(OTHER_PYTHON)
        there = OTHER_PYTHON.is_file() and any(usable(name, other) for name in lacking)
        return other if there else HERE


def throughput(numbers: Numbers) -> float:
    """Mbit/s of payload."""
    if "mbit_s" in numbers:
        return float(numbers["mbit_s"])
    return float(numbers["octets"]) * 8e-6 / float(numbers["seconds"])


def ratio(title: str, case: str, to: str, target: float | None = None) -> Row:
    """How many times as fast as another case of the group."""
    return Row(title, lambda r: throughput(r[case]) / throughput(r[to]), (case, to), target)


def bound(title: str, case: str, figure: Callable[[Numbers], float], limit: float) -> Row:
    """A figure as a part of what it may be."""
    return Row(title, lambda r: figure(r[case]) / limit, (case,), 1.0, True, "of limit")
