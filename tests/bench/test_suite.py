"""The suite runs: every role once, small; and what it computes and draws from given numbers. No figure is judged."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvcs import certs
from kvcs.bench.runner import prepare
from tests.bench import cases
from tests.bench.__main__ import main, parse
from tests.bench.cases import Case, Group, Row, bound, ratio, throughput
from tests.bench.picture import picture, pipelining_times
from tests.bench.processes import RunFailed, run_pair, run_program
from tests.bench.profile import run_profile, shares
from tests.bench.rows import GROUPS, pipelining
from tests.bench.suite import GroupResult, RowResult, environment, run_suite, run_through
from tests.bench.table import table
from tests.bench.ticker import Ticker
from tests.soak.test_large import transfer

TINY: dict[str, dict[str, Any]] = {
    "first": {"warm_layers": 1},
    "pipeline": {"factors": (0.0, 0.5)},
    "sixteen": {"count": 2},
    "stopped": {"pause": 0.1},
}
SIZES = {"first": 20, "pipeline": 2}
"""Mebibytes, where it is not 4."""


def numbers(**more: Any) -> dict[str, Any]:
    """What any role may say."""
    given: dict[str, Any] = {
        "octets": 1_000_000,
        "seconds": 2.0,
        "first_layer_seconds": 0.5,
        "anonymous": 32 << 20,
        "cpu": 1.0,
        "server_cpu": 0.5,
        "server_anonymous": 48 << 20,
        "ahead": 4 << 20,
        "late": 0.05,
        "server_late": 0.02,
        "server_sent": 1_000_000,
        "each": 1_000_000,
        "relay_anonymous": 64 << 20,
        "relay_cpu": 1.5,
        "manifest_at": 10.1,
        "server_appended_at": 10.0,
        "times": [1.0, 1.1, 1.2, 1.3, 2.2, 5.3],
        "computes": [0.0, 0.2, 0.5, 1.0, 2.0, 5.0],
        "factors": [0.0, 0.2, 0.5, 1.0, 2.0, 5.0],
        "layer_time": 0.03125,
    }
    return given | more


def result(name: str) -> GroupResult:
    """A group as if it had been run twice."""
    group = GROUPS[name]
    rounds = [{case: numbers() for case in group.cases} for _ in range(2)]
    rows = [RowResult(row, [row.figure(r) for r in rounds]) for row in group.rows]
    return GroupResult(name, group.title, rounds, rows, {"qh3": "the backend qh3"})


def written_in(drawing: str) -> str:
    """The text of an SVG, which also has to be well-formed."""
    return "".join(ET.fromstring(drawing).itertext())  # noqa: S314 - our own


@pytest.mark.parametrize("name", GROUPS)
def test_every_row_can_be_computed_and_every_case_planned(name: str) -> None:
    group = GROUPS[name]
    assert {case for row in group.rows for case in row.needs} <= set(group.cases)
    for row in result(name).rows:
        assert row.median > 0
        assert row.met in {True, False, None}
    for case in group.cases.values():
        for quick in (False, True):
            if not case.command and (case.in_quick or not quick):
                case.plan(".", quick=quick).check()


def test_table_and_picture_show_every_row() -> None:
    results = [result(name) for name in GROUPS]
    content = environment(quick=False, rounds=2) | {"groups": [r.to_json() for r in results]}
    content = json.loads(json.dumps(content))
    text, drawing = table(results), picture(content)
    shown = written_in(drawing)
    for name in GROUPS:
        for row in GROUPS[name].rows:
            assert row.title in text
            assert row.title in shown
    assert "qh3 was left out: it needs the backend qh3" in text
    assert "measured" in shown


def test_a_picture_without_a_curve() -> None:
    content = environment(quick=True, rounds=1) | {"groups": [result("memory").to_json()]}
    assert "measured" not in written_in(picture(content))
    assert pipelining_times([]) == []


def test_figures() -> None:
    assert throughput(numbers()) == 4.0
    assert throughput({"mbit_s": 7}) == 7.0
    row = ratio("r", "a", "b", 0.9)
    assert row.figure({"a": numbers(), "b": numbers(seconds=1.0)}) == 0.5
    assert RowResult(row, [0.5, 0.9, 1.0]).met is True
    assert RowResult(bound("b", "a", lambda n: float(n["late"]), 0.1), [0.5]).met is True
    assert RowResult(bound("b", "a", lambda n: float(n["late"]), 0.1), [1.5]).met is False
    late = numbers(times=[1.0, 1.05 + 2 * 0.03125], computes=[0.0, 1.0], factors=[0.0, 2.0])
    assert pipelining(late) == [1.0]


def test_a_case_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert Case().lacks() is None
    assert Case(settings={"no_such": 1}).lacks() == "the setting no_such"
    assert Case(backend="none").lacks() == "the backend none"
    assert Case(loop="no_such_loop").lacks() == "no_such_loop"
    monkeypatch.setenv("KVCS_BENCH_PEERS", str(tmp_path))
    case = Case(command=("their-bench",))
    assert "their-bench" in str(case.lacks())
    tool = tmp_path / "their-bench"
    tool.write_text("#!/bin/sh\necho 'Throughput:  1,250.5 Mbps'\n")
    tool.chmod(0o755)
    assert case.lacks() is None
    ran = run_program([str(tool)], r"Throughput:\s*([\d.,]+) Mbps", str(tmp_path))
    assert ran == {"mbit_s": 1250.5}
    with pytest.raises(RunFailed):
        run_program([str(tool)], r"Goodput: (\d+)", str(tmp_path))


def test_a_group_runs_where_its_backends_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All of it with one interpreter: ratios compare nothing else."""
    group = Group("two", {"a": Case(), "b": Case(backend="none")}, ())
    monkeypatch.setattr(cases, "OTHER_PYTHON", tmp_path / "python")
    assert group.python() == cases.HERE
    (tmp_path / "python").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "python").chmod(0o755)
    assert group.python() == str(tmp_path / "python")
    assert group.cases["b"].lacks(group.python()) is None
    assert Group("one", {"a": Case()}, ()).python() == cases.HERE


def test_other_projects_programs_are_found_beside_this_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(cases.PEERS, raising=False)
    monkeypatch.setattr(cases, "PEERS_HERE", tmp_path)
    assert cases.program("their-bench") is None
    (tmp_path / "their-bench").write_text("#!/bin/sh\n")
    (tmp_path / "their-bench").chmod(0o755)
    assert cases.program("their-bench") == str(tmp_path / "their-bench")


def test_what_cannot_run_leaves_no_row() -> None:
    group = Group(
        "nothing",
        {"a": Case(backend="none"), "b": Case()},
        (Row("never", lambda r: 0.0, ("a", "b")),),
    )
    (done,) = run_suite({"nothing": group}, rounds=1, quick=True, say=lambda text: None)
    assert (done.rounds, done.rows) == ([], [])
    assert done.missing == {"a": "the backend none"}


@pytest.mark.parametrize(
    ("group", "case"),
    [
        ("transport", "stock"),
        ("transport", "16000"),
        ("loops", "uvloop-1452"),
        ("first", "first"),
        ("pipeline", "pipeline"),
        ("many", "sixteen"),
        ("stopped", "stopped"),
    ],
)
def test_every_role_runs(group: str, case: str, tmp_path: Path) -> None:
    chosen = GROUPS[group].cases[case]
    small = replace(chosen, quick_size=SIZES.get(case, 4))
    if chosen.options:
        small = replace(small, quick_options=TINY[case])
    plan = small.plan(str(tmp_path), quick=True)
    prepare(plan)
    said = run_pair(plan, small.server, small.client)
    assert said["seconds"] > 0
    assert said["octets"] > 0


@pytest.mark.parametrize(("group", "case"), [("relay", "eight"), ("beside", "beside")])
def test_every_role_beside_a_relay_runs(group: str, case: str, tmp_path: Path) -> None:
    certs.make(tmp_path)
    chosen = replace(GROUPS[group].cases[case], quick_size=2)
    if "count" in chosen.options:
        chosen = replace(chosen, quick_options={"count": 2})
    assert chosen.relay is not None
    said = run_through(chosen.plan(str(tmp_path), quick=True), chosen, chosen.relay)
    assert said["server_sent"] == said["each"] == chosen.quick_size << 20
    assert said["octets"] == said["each"] * chosen.quick_options.get("count", 1)
    assert said["relay_cpu"] > 0
    if Path("/proc/self/status").exists():
        assert said["relay_anonymous"] > 0


def test_a_long_transfer_runs_in_small(tmp_path: Path) -> None:
    """What `make soak` does: several retrievals over one session, with the figures of its table."""
    noted: dict[str, float] = {}
    octets, _ = transfer(
        tmp_path, 1452, 1 / 256, 2, lambda title, figure, unit: noted.update({title: figure})
    )
    assert octets == 8 << 20
    assert [title.partition(": ")[2] for title in noted] == [
        "seconds",
        "throughput",
        "consumer's memory",
        "publisher's memory",
        "key updates",
    ]


def test_the_command_line_writes_what_it_is_told_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert parse([]).output is None
    assert main(["--quick", "--only", "memory", "--output", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert "consumer, of 64 MiB" in printed.out
    assert "round 1" in printed.err
    content = json.loads((tmp_path / "results.json").read_text("utf-8"))
    assert [group["name"] for group in content["groups"]] == ["memory"]
    assert "KVCS benchmarks" in written_in((tmp_path / "results.svg").read_text("utf-8"))


def test_a_worker_that_fails_is_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    plan = Case().plan(str(tmp_path), quick=True)
    with pytest.raises(RunFailed, match="publish"):
        run_pair(plan, "publish", "subscribe")
    assert "cache.safetensors" in capfd.readouterr().err


async def test_the_ticker_measures_something() -> None:
    ticker = Ticker()
    ticker.start()
    assert await ticker.stop() >= 0.0


def test_profiles_are_divided_by_part_and_leave_waiting_out() -> None:
    stats: dict[tuple[str, int, str], tuple[Any, ...]] = {
        ("/x/aioquic/quic/connection.py", 1, "receive"): (1, 1, 6.0, 6.0, {}),
        ("/x/moqt/quic/aioquic.py", 1, "connect"): (1, 1, 1.0, 1.0, {}),
        ("~", 0, "<method 'sendto' of '_socket.socket' objects>"): (1, 1, 2.0, 2.0, {}),
        ("~", 0, "<built-in method _hashlib.openssl_sha256>"): (1, 1, 1.0, 1.0, {}),
        ("~", 0, "<method 'poll' of 'select.epoll' objects>"): (1, 1, 90.0, 90.0, {}),
    }
    assert shares(stats) == [
        ("aioquic: connection", 60.0),
        ("system calls on sockets", 20.0),
        ("moqt.quic", 10.0),
        ("SHA-256", 10.0),
    ]


def test_a_profile_has_shares_of_both_ends() -> None:
    found = run_profile(16000, 4)
    assert list(found) == ["publish", "subscribe"]
    for parts in found.values():
        assert sum(share for _, share in parts) == pytest.approx(100)
