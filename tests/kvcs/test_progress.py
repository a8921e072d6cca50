"""kvcs.progress: lines that programs can read, and a bar for people."""

from __future__ import annotations

import io

from rich.console import Console

from kvcs.progress import LAYER_LINE, BarProgress, PlainProgress, layer_progress, megabytes


def test_plain_lines() -> None:
    out = io.StringIO()
    progress = layer_progress(Console(file=out, width=20), "usable", 2)
    assert isinstance(progress, PlainProgress)
    progress.note("a [bold]note[/] that is longer than the console is wide")
    progress.layer(0)
    progress.layer(1, 1000)
    progress.close()
    note, *lines = out.getvalue().splitlines()
    assert note == "a [bold]note[/] that is longer than the console is wide"
    matches = [LAYER_LINE.fullmatch(line) for line in lines]
    assert [match and match[1] for match in matches] == ["0", "1"]
    assert lines[0].endswith(" s  1 to come")
    assert lines[1].endswith(" s  0 to come")


def test_a_bar_on_a_terminal() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, _environ={"TERM": "xterm"})
    progress = layer_progress(console, "usable", 2)
    assert isinstance(progress, BarProgress)
    progress.note("a [bold]note[/]")
    progress.layer(0, 200_000)
    progress.layer(1, 400_000)
    progress.close()
    progress.close()
    shown = out.getvalue()
    assert "a [bold]note[/]" in shown
    assert "layers usable" in shown
    assert "2/2" in shown
    assert "0.4 MB" in shown


def test_a_dumb_terminal_gets_lines() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"})
    assert isinstance(layer_progress(console, "usable", 1), PlainProgress)


def test_sizes() -> None:
    assert [megabytes(n) for n in (0, 768, 99_999, 100_000, 2_949_120)] == [
        "0.0 kB",
        "0.8 kB",
        "100.0 kB",
        "0.1 MB",
        "2.9 MB",
    ]
