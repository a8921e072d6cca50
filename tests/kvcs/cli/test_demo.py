"""kvcs.cli.demo: two processes, a real cache, and nothing left afterwards."""

from __future__ import annotations

import io
import os
import re
import signal
from pathlib import Path

import pytest
from rich.console import Console

from kvcs.cli import demo
from kvcs.cli.main import main
from kvcs.cli.stage import Stage
from tests.support.cli import Files, Out, program

ROW = re.compile(r" +(\d+) +\d+\.\d\d s +\d+\.\d\d s +(?:earlier|\d+\.\d ms) +(\d+)  ")
END = re.compile(
    r"30 layers, 2949120 bytes, [0-9.]+ Mbit/s, first layer [0-9]\.[0-9]{3} s, identical: yes"
)


def rows(out: str) -> list[tuple[int, int]]:
    """Layers and how many were still to come."""
    found = (ROW.match(line) for line in out.splitlines())
    return [(int(match[1]), int(match[2])) for match in found if match]


async def test_the_real_cache_goes_from_process_to_process() -> None:
    """Every layer has a row while later ones are still to come; the last line has the figures."""
    async with program("demo", "--rate", "30") as show:
        ended = await show.outcome()
    assert (ended.status, ended.err) == (0, "")
    assert rows(ended.out) == [(layer, 29 - layer) for layer in range(30)]
    assert END.fullmatch(ended.out.splitlines()[-1])


@pytest.mark.usefixtures("either_loop")
async def test_ctrl_c_leaves_no_process() -> None:
    async with program("demo", "--rate", "1") as show:
        lines = [await show.until(start, "out") for start in ("publisher  process", "consumer   ")]
        await show.until(" layer", "out")
        show.process.send_signal(signal.SIGINT)
        ended = await show.outcome()
    assert ended.complaint(130) == "kvcs: interrupted"
    for line in lines:
        number = re.search(r"process (\d+)", line)
        assert number is not None
        with pytest.raises(ProcessLookupError):
            os.kill(int(number[1]), 0)


def test_another_file(files: Files, capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of the user's own do not reach the two processes."""
    monkeypatch.setenv("KVCS_LAYERS", "0-0")
    Path("kvcs.toml").write_text("[subscribe]\nblocks = 1\n", "utf-8")
    assert main(["demo", "--file", files.cache, "--rate", "1000"]) == 0
    out = capsys.readouterr().out
    assert rows(out) == [(0, 2), (1, 1), (2, 0)]
    assert out.splitlines()[-1].endswith("identical: yes")


def test_without_a_checkout_a_sample_is_shown(
    files: Files, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "REAL_CACHE", Path("none"))
    assert main(["demo", "--rate", "1000"]) == 0
    told = capsys.readouterr()
    assert "kvcs: notice: " in told.err
    assert "random numbers: 30 layers" in told.out
    assert END.search(told.out)


@pytest.mark.parametrize(
    "args",
    [
        ["--file", "none"],
        ["--file", "scope.key"],
        ["--descriptor", "cache"],
        ["--rate", "0"],
    ],
    ids=" ".join,
)
def test_bad_flags(files: Files, capsys: Out, args: list[str]) -> None:
    assert main(["demo", *args]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_publisher_that_fails(files: Files, capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last words are shown."""
    monkeypatch.setattr(demo.Cast, "__post_init__", _without_key(demo.Cast.__post_init__))
    assert main(["demo", "--file", files.cache]) == 1
    assert "the publisher does not serve: kvcs: scope key" in capsys.readouterr().err


def _without_key(prepare: object) -> object:
    def prepared(cast: demo.Cast) -> None:
        assert callable(prepare)
        prepare(cast)
        cast.key.unlink()

    return prepared


def test_a_difference_is_told(files: Files, tmp_path: Path) -> None:
    cast = demo.Cast(tmp_path, Path(files.cache), Path(files.cache))
    octets = bytearray(Path(files.cache).read_bytes())
    octets[-1] ^= 1
    cast.output.write_bytes(octets)
    out = io.StringIO()
    stage = Stage(Console(file=out, width=200), 3)
    report = {"layers": 3, "bytes": 768, "seconds": 0.0, "first_layer_seconds": 0.1}
    assert not demo._verdict(stage, cast, report)
    assert out.getvalue().rstrip().endswith("identical: no")


@pytest.mark.parametrize("width", [60, 80, 200])
def test_rows_fit_the_terminal(width: int) -> None:
    """The bar gives way; no row is broken in two."""
    out = io.StringIO()
    stage = Stage(Console(file=out, width=width), 30)
    for layer in range(30):
        stage.consumer_said(f"layer {layer:3} usable    0.08 s  {29 - layer} to come")
    longest = max(len(line) for line in out.getvalue().splitlines())
    assert longest == min(max(width - 1, 60), 84)
