"""What `kvcs demo` shows: the rows of its table, and the two processes that it hears them from."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console
from rich.text import Text

from kvcs import loops
from kvcs.progress import LAYER_LINE

BAR = 24
COLUMNS = 60
"""Of a row before its bar, which gives way on a narrow terminal."""
GOODBYE = 8.0
"""Seconds that a process has to end by itself, of which a publisher gives subscribers five."""


class Process:
    """A `kvcs` process. Nothing of it is left after `end`."""

    def __init__(self, process: asyncio.subprocess.Process, heard: Callable[[str], object]) -> None:
        self.pid = process.pid
        self.last = ""
        """The last line it wrote on stderr."""
        self._process = process
        self.silent = asyncio.create_task(self._listen(heard))
        """Done when it closed stderr."""

    @classmethod
    async def start(
        cls, environment: Mapping[str, str], heard: Callable[[str], object], *args: str
    ) -> Process:
        """Runs `kvcs` with `args`; `heard` is told each line that it writes on stderr."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "kvcs", *args),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
        )
        return cls(process, heard)

    async def _listen(self, heard: Callable[[str], object]) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            self.last = line.decode("utf-8", "replace").rstrip()
            heard(self.last)

    async def output(self) -> tuple[int, str]:
        """Its exit status and what it wrote on stdout, once it has ended."""
        assert self._process.stdout is not None
        octets = await self._process.stdout.read()
        await self.silent
        return await self._process.wait(), octets.decode("utf-8", "replace")

    async def end(self) -> None:
        """Asks it to end, and makes it."""
        if self._process.returncode is None:
            self._process.terminate()
        try:
            async with asyncio.timeout(GOODBYE):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        finally:
            if self._process.returncode is None:
                self._process.kill()
        await self.silent


def environment(root: Path, config: Path) -> dict[str, str]:
    """For processes that run this source on this loop, and no settings but those in `config`."""
    variables = {name: v for name, v in os.environ.items() if not name.startswith("KVCS_")}
    paths = [str(root), *filter(None, [variables.get("PYTHONPATH")])]
    own = {"PYTHONPATH": os.pathsep.join(paths), "KVCS_CONFIG": str(config)}
    return variables | own | {loops.VARIABLE: loops.chosen()}


class Stage:
    """What the audience sees: one row for each layer that becomes usable."""

    def __init__(self, console: Console, layers: int) -> None:
        self.produced: dict[int, float] = {}
        self.ready = asyncio.Event()
        self._console = console
        self._layers = layers
        self._usable = 0
        self._started = time.monotonic()
        self._joined = float("inf")

    def publisher_said(self, line: str) -> None:
        """A line of the publisher: a layer was produced, or it is ready."""
        now = time.monotonic()
        match = LAYER_LINE.fullmatch(line)
        if match is not None:
            self.produced[int(match[1])] = now
        elif line.startswith("publication "):
            self._started = now
            self.ready.set()

    def consumer_said(self, line: str) -> None:
        """A line of the consumer: it is connected, or a layer is usable."""
        now = time.monotonic()
        match = LAYER_LINE.fullmatch(line)
        if match is not None:
            self._row(int(match[1]), now)
        elif line.startswith("connected "):
            self._joined = now
            there = len(self.produced)
            self.say(
                f"It joins {now - self._started:.2f} s after production began: {there} layers are "
                f"there, {self._layers - there} still to come.",
                "dim",
            )
            self.say("")
            self.say(" layer    produced      usable       delay   still to come", "bold")

    def _row(self, layer: int, now: float) -> None:
        self._usable += 1
        produced = self.produced.get(layer, now)
        row = Text(f"{layer:6}  {produced - self._started:8.2f} s  ")
        row.append(f"{now - self._started:8.2f} s", "green")
        if produced < self._joined:
            row.append("     earlier", "dim")
        else:
            row.append(f"  {max(now - produced, 0) * 1e3:7.1f} ms", "cyan")
        row.append(f"  {self._layers - self._usable:14}  ")
        bar = max(min(BAR, self._console.width - COLUMNS - 1), 0)
        done = round(bar * self._usable / self._layers)
        full, rest = ("#", ".") if self._console.options.ascii_only else ("━", "─")
        row.append(full * done, "green")
        row.append(rest * (bar - done), "dim")
        self._console.print(row, soft_wrap=True)

    def say(self, text: str, style: str = "") -> None:
        """A line of its own."""
        self._console.print(Text(text, style), soft_wrap=True)
