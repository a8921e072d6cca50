"""The words that the table of rows is written in: cases that are run, rows that are computed from them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from typing import Any

from kvcs.bench.plan import Plan
from kvcs.loops import chosen
from moqt import TransportConfig
from moqt.errors import LocalError
from moqt.quic import BACKENDS, backend
from tests.bench.processes import Numbers

PEERS = "KVCS_BENCH_PEERS"
"""Names a directory with programs of other projects; they live in environments of their own."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Something to run: two roles over one cache, or a program of another project."""

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

    def lacks(self) -> str | None:
        """What has to be installed before it can run; None if nothing."""
        if self.command:
            return None if program(self.command[0]) else f"{self.command[0]} (see {PEERS})"
        unknown = set(self.settings) - {f.name for f in fields(TransportConfig)}
        if unknown:
            return f"the setting {', '.join(sorted(unknown))}"
        if self.loop != "asyncio" and find_spec(self.loop) is None:
            return self.loop
        return None if usable(self.backend) else f"the backend {self.backend}"


def program(name: str) -> str | None:
    """Where a program of another project is."""
    return shutil.which(name, path=os.environ.get(PEERS)) or shutil.which(name)


def usable(name: str) -> bool:
    """Whether a backend is installed."""
    if name not in BACKENDS:
        return False
    try:
        backend(name)
    except LocalError:
        return False
    return True


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
