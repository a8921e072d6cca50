"""How far a production or a retrieval is, layer by layer: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import re
import time
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

LAYER_LINE = re.compile(r"layer +([0-9]{1,4}) [a-z]+ +[0-9]+\.[0-9]{2} s  [0-9]+ to come")
"""What `PlainProgress` writes for a layer; its group is the layer."""


class LayerProgress(Protocol):
    """Hears of every layer, and of what else a person wants to know."""

    def note(self, text: str) -> None:
        """One line."""

    def layer(self, layer: int, octets: int = 0) -> None:
        """A layer is done; `octets` are all so far, 0 where nobody counts."""

    def close(self) -> None:
        """Nothing follows."""


class PlainProgress:
    """A line for each layer."""

    def __init__(self, console: Console, verb: str, layers: int) -> None:
        self._console = console
        self._verb = verb
        self._layers = layers
        self._done = 0
        self._started = time.monotonic()

    def note(self, text: str) -> None:
        """One line."""
        self._console.out(text, highlight=False)

    def layer(self, layer: int, octets: int = 0) -> None:
        """One line: the layer, the time since the start, and how many are still to come."""
        self._done += 1
        seconds = time.monotonic() - self._started
        left = self._layers - self._done
        self.note(f"layer {layer:3} {self._verb} {seconds:7.2f} s  {left} to come")

    def close(self) -> None:
        """Nothing."""


class BarProgress:
    """A bar that grows with the layers and is gone at the end; notes stand above it."""

    def __init__(self, console: Console, verb: str, layers: int) -> None:
        self._console = console
        self._started = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[volume]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task(f"layers {verb}", total=layers, volume="")
        self._bar.start()

    def note(self, text: str) -> None:
        """One line above the bar."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def layer(self, layer: int, octets: int = 0) -> None:
        """The bar grows."""
        seconds = max(time.monotonic() - self._started, 1e-6)
        volume = f"{megabytes(octets)}, {octets * 8e-6 / seconds:.1f} Mbit/s" if octets else ""
        self._bar.update(self._task, advance=1, volume=volume)

    def close(self) -> None:
        """Takes the bar away."""
        self._bar.stop()


def layer_progress(console: Console, verb: str, layers: int) -> LayerProgress:
    """The kind that suits `console`; `verb` is what happens to layers: "published", "usable"."""
    if console.is_terminal and not console.is_dumb_terminal:
        return BarProgress(console, verb, layers)
    return PlainProgress(console, verb, layers)


def megabytes(octets: int) -> str:
    """A size as people read it."""
    return f"{octets / 1e6:.1f} MB" if octets >= 100_000 else f"{octets / 1e3:.1f} kB"
