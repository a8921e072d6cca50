"""Publishers, relays and consumers in processes of their own, of which some are killed with SIGKILL on the way."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

from kvcs.cli.verify import compare
from kvcs.formats.safetensors import KvFile
from tests.support.cli import Files, Outcome, Program, program

LAYERS = 60
IDLE = 2.0
"""Seconds until relays and their peers notice a killed one; ten by default, which tests need not wait for."""
RATE = 2.0
"""Layers a second. The whole production takes longer than processes need to start on a busy machine, so it is cut in
its middle; who wants the first layers only need not wait for its end."""


class Scene:
    """One network of processes, all gone at its end."""

    def __init__(self, directory: Path, certificates: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.files = Files.make(directory, layers=LAYERS)
        self._certificates = certificates
        self._stack = AsyncExitStack()
        self._names = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    @property
    def _trust(self) -> list[str]:
        return ["--ca", str(self._certificates / "ca.pem")]

    def _place(self, kind: str) -> Path:
        self._names += 1
        return self.files.directory / f"{kind}-{self._names}"

    async def relay(self, *upstreams: str) -> tuple[str, Program]:
        """`kvcs relay`: its URL, and itself."""
        ready = self._place("relay")
        shown = [f"--{name}={self._certificates / pem}" for name, pem in _PAIR.items()]
        words = ["--listen", "127.0.0.1:0", *shown, "--ready-file", str(ready)]
        words += ["--idle-timeout", str(IDLE), *self._trust]
        for upstream in upstreams:
            words += ["--upstream", upstream]
        relay = await self._stack.enter_async_context(program("relay", *words))
        await relay.until("kvcs: relaying at ")
        return json.loads(ready.read_text("utf-8"))["url"], relay

    async def publisher(self, *relays: str, rate: float | None = RATE) -> tuple[str, Program]:
        """`kvcs publish` through relays: its Publication ID, and itself."""
        words = [self.files.cache, *self.files.key, *self._trust]
        for url in relays:
            words += ["--relay", url]
        if rate is not None:
            words += ["--live-rate", str(rate)]
        publisher = await self._stack.enter_async_context(program("publish", *words))
        line = await publisher.until("publication ")
        return line.split()[1], publisher

    async def consumer(self, *urls: str, layers: int = LAYERS) -> Consumer:
        """`kvcs subscribe`, of the first `layers`."""
        output = self._place("output") / "cache"
        output.parent.mkdir()
        prompt = ["--descriptor", self.files.cache, "--tokens", self.files.cache]
        words = [*urls, *self.files.key, *prompt, "--output", str(output), "--json", *self._trust]
        words += ["--layers", f"0-{layers - 1}"]
        started = await self._stack.enter_async_context(program("subscribe", *words))
        return Consumer(started, output, self.files, layers)


class Consumer:
    """A running `kvcs subscribe`."""

    def __init__(self, started: Program, output: Path, files: Files, layers: int) -> None:
        self._program = started
        self._output = output
        self._files = files
        self._layers = layers

    async def usable(self, layer: int) -> None:
        """Returns once a layer is usable."""
        await self._program.until(f"layer {layer:3d} usable")

    async def complete(self) -> dict[str, Any]:
        """Its report, after it stored an identical copy."""
        return self._check_complete(await self._program.outcome())

    async def cut_off(self) -> dict[str, Any]:
        """Its report, after it ended with nothing stored and said in one line what is missing."""
        return self._check_cut_off(await self._program.outcome())

    async def exact(self) -> dict[str, Any]:
        """One of the two, or that there is nothing."""
        ended = await self._program.outcome()
        if ended.status == 0:
            return self._check_complete(ended)
        if ended.status == 4:
            return self._check_cut_off(ended)
        assert ended.status in {1, 3}, ended.err
        ended.complaint(ended.status)
        return ended.json

    def _check_complete(self, ended: Outcome) -> dict[str, Any]:
        assert ended.status == 0, ended.err
        assert ended.json["status"] == "complete"
        assert ended.json["layers"] == self._layers
        with KvFile(self._files.cache) as sent, KvFile(self._output) as copy:
            assert compare(copy, sent).different == ()
        return ended.json

    def _check_cut_off(self, ended: Outcome) -> dict[str, Any]:
        assert "incomplete" in ended.complaint(4)
        report = ended.json
        assert report["status"] == "incomplete"
        assert report["missing"] or not report["publication"]
        assert list(self._output.parent.iterdir()) == []
        return report


_PAIR = {"cert": "server.pem", "key": "server-key.pem"}


async def kill(victim: Program) -> None:
    """SIGKILL."""
    victim.process.kill()
    await asyncio.wait_for(victim.process.wait(), 10)
