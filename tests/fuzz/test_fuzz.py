"""A short run of every target, the inputs that are kept, and that the engine itself finds what it looks for."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import limits
from tests.fuzz.engine import Note, Outcome, Worker
from tests.fuzz.kept import CORPUS, corpus_of, keep, load
from tests.fuzz.mutations import mutate
from tests.fuzz.registry import KINDS, TARGETS
from tests.fuzz.runner import run_all
from tests.fuzz.target import Choices, Run, Target

ROOT = Path(__file__).resolve().parent.parent.parent
SMOKE = 60
"""Seconds of processor time over all targets."""


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_kept(name: str) -> None:
    """Seeds, inputs that reached new lines once, and failures of the past: nothing but documented errors."""
    target = TARGETS[name]
    kept = [*target.seeds, *corpus_of(name)]
    assert kept
    for data in kept:
        assert len(data) <= target.most
        try:
            target.run(data)
        except target.errors:
            pass


def test_the_corpus_is_small_and_in_its_files() -> None:
    """A file for each kind of targets that have some, in order and without doubles."""
    files = sorted(path for path in CORPUS.rglob("*") if path.is_file())
    assert {path.name for path in files} <= {f"{kind}.jsonl" for kind in KINDS.values()}
    assert sum(path.stat().st_size for path in files) < 300 << 10
    for path in files:
        kept = load(path)
        assert {KINDS[name] for name, _, _ in kept} == {path.stem}
        again = [(name, len(data), data) for name, data, _ in kept]
        assert again == sorted(set(again))


def test_what_is_added_to_a_corpus_is_read_back(tmp_path: Path) -> None:
    """Octets of any kind, each once; notes stay."""
    path = tmp_path / "wire.jsonl"
    path.write_text('{"target": "url", "text": "moqt:", "note": "no host"}\n', "ascii")
    keep("url", [b"moqt://a", b"\xff\0", b"moqt:", b'"\n\\', b"", b"\r"], tmp_path)
    assert load(path) == [
        ("url", b"", ""),
        ("url", b"\r", ""),
        ("url", b"\xff\0", ""),
        ("url", b'"\n\\', ""),
        ("url", b"moqt:", "no host"),
        ("url", b"moqt://a", ""),
    ]
    assert '"text": "moqt://a"' in path.read_text("ascii")
    assert '"hex": "ff00"' in path.read_text("ascii")


def test_a_minute_of_fuzzing(tmp_path: Path) -> None:
    """No crash, no hang over a second, no memory over 256 MiB; on all processors that there are."""
    figures = tmp_path / "figures.json"
    words = [
        "--seconds",
        str(SMOKE),
        "--failures",
        str(tmp_path / "failures"),
        "--json",
        str(figures),
    ]
    ended = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "tests.fuzz", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    print(ended.stdout[-4000:])  # noqa: T201
    assert ended.returncode == 0, ended.stderr
    told = json.loads(figures.read_text("ascii"))
    assert {outcome["target"] for outcome in told} == TARGETS.keys()
    assert sum(outcome["seconds"] for outcome in told) >= SMOKE
    for outcome in told:
        assert outcome["runs"] > 20, outcome
        assert outcome["lines"] > 1, outcome
        assert outcome["memory"] <= limits.MEMORY, outcome


# The engine


def _planted(run: Run, *seeds: bytes) -> Target:
    return Target(name="planted", run=run, errors=(ValueError,), seeds=seeds or (b"abcd",))


def _fuzz(target: Target, seconds: float = 0.6) -> Outcome:
    """In a process of its own, as always: limits on memory stay for good."""
    told: list[Outcome] = []
    run_all([target], seconds=seconds, workers=1, seed=1, tell=told.append)
    (outcome,) = told
    return outcome


def _crash(data: bytes) -> None:
    if len(data) > 3 and data[0] != ord("a"):
        raise KeyError(data[:1])
    raise ValueError


def _hang(data: bytes) -> None:
    if data[:1] == b"\xff":
        sum(range(1 << 40))


def _eat(data: bytes) -> None:
    if data[:1] == b"\xff":
        bytearray(1 << 29)


def _refuse(data: bytes) -> None:
    if not data:
        raise IndexError("empty")
    raise ValueError


@pytest.mark.parametrize(
    ("run", "what"), [(_crash, "KeyError"), (_hang, "more than 1 s"), (_eat, "MemoryError")]
)
def test_it_finds_what_is_planted(run: Run, what: str) -> None:
    """And hands over the input that shows it."""
    outcome = _fuzz(_planted(run))
    assert outcome.failures
    for failure in outcome.failures:
        assert what in failure.what
        assert failure.data[:1] != b"a"


def test_documented_errors_are_no_failures() -> None:
    """They are counted, and the time is used."""
    outcome = _fuzz(_planted(_refuse), 0.3)
    assert [failure.what for failure in outcome.failures] == ["IndexError('empty')"]
    assert outcome.refused > 100
    assert outcome.seconds >= 0.3


def test_new_lines_lead_it_deeper() -> None:
    """Four right octets in a row are found one after another; by chance alone that takes ages."""
    header = TARGETS["payload-header"]
    worker = Worker(
        Target(name="deep", run=header.run, errors=header.errors, seeds=[b"KVO"], most=80),
        "1",
        Note(),
    )
    outcome = worker.work(1.0, [])
    assert outcome.kept
    assert outcome.refused == outcome.runs


def test_mutations_differ_and_keep_to_the_limit() -> None:
    dice = random.Random(1)
    found = {mutate(dice, b"0123456789", [b"abc"], [b"word"], 64) for _ in range(1000)}
    assert len(found) > 700
    assert max(map(len, found)) == 64
    assert any(b"word" in data for data in found)
    assert any(b"abc" in data for data in found)
    same = random.Random(1)
    assert {mutate(same, b"0123456789", [b"abc"], [b"word"], 64) for _ in range(1000)} == found


def test_choices_end_quietly() -> None:
    choices = Choices(b"\1\0\2ab")
    assert (choices.number(), choices.number(2), choices.piece(9)) == (1, 2, b"ab")
    assert not choices
    assert (choices.number(), choices.piece(3)) == (0, b"")
    assert b"".join(Choices(b"\0\1\2\3").pieces(b"x" * 200)) == b"x" * 200


def test_a_replayed_input(tmp_path: Path) -> None:
    """`--replay` tells what one input does."""
    path = tmp_path / "input"
    path.write_bytes(b"[1, 2")
    words = ["--targets", "tokens-json", "--replay", str(path)]
    ended = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "tests.fuzz", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert "refused" in ended.stdout
