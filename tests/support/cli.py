"""The command line in tests: in this process, beside its event loop, or in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kvcs.cli.main import main
from kvcs.kvsp.descriptor import Descriptor
from kvcs.kvsp.identity import Identity
from tests.support.caches import SCOPE_KEY, descriptor, write_cache

Out = pytest.CaptureFixture[str]
REPOSITORY = Path(__file__).resolve().parent.parent.parent
PATIENCE = 60.0
"""Seconds after which a command hangs."""


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one object on stdout."""
        (line,) = self.out.splitlines()
        found: dict[str, Any] = json.loads(line)
        return found

    def complaint(self, status: int) -> str:
        """The one line that tells what is wrong; nothing looks like a traceback."""
        assert self.status == status, self.err
        assert "Traceback" not in self.err
        lines = [
            line
            for line in self.err.splitlines()
            if line.startswith("kvcs: ") and not line.startswith(("kvcs: warning", "kvcs: notice"))
        ]
        (line,) = lines
        assert line == self.err.splitlines()[-1]
        return line


@dataclass(frozen=True)
class Files:
    """A directory with a cache that carries descriptor and tokens, and the key of its scope."""

    directory: Path
    descriptor: Descriptor
    identity: Identity

    @classmethod
    def make(cls, directory: Path, tokens: int = 8, **changes: object) -> Files:
        of = descriptor(**changes)
        write_cache(directory / "cache", of, tokens)
        (directory / "scope.key").write_bytes(SCOPE_KEY)
        return cls(directory, of, Identity.derive(SCOPE_KEY, of, list(range(tokens))))

    @property
    def cache(self) -> str:
        return str(self.directory / "cache")

    @property
    def output(self) -> Path:
        return self.directory / "received" / "output"

    @property
    def key(self) -> list[str]:
        return ["--scope-key", str(self.directory / "scope.key")]

    def subscribe(self, *args: str) -> list[str]:
        """The words of `kvcs subscribe --json` for this cache."""
        self.output.parent.mkdir(exist_ok=True)
        prompt = ["--descriptor", self.cache, "--tokens", self.cache]
        return ["subscribe", *self.key, *prompt, "--output", str(self.output), "--json", *args]

    def nothing_written(self) -> bool:
        """Whether no file was left, under whatever name."""
        return not self.output.parent.exists() or list(self.output.parent.iterdir()) == []


async def kvcs(capsys: Out, *args: str) -> Outcome:
    """Runs a command in a thread, so that peers can live in this loop."""
    capsys.readouterr()
    async with asyncio.timeout(PATIENCE):
        status = await asyncio.to_thread(main, args)
    told = capsys.readouterr()
    return Outcome(status, told.out, told.err)


class Program:
    """A command in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self._seen: dict[str, list[str]] = {"out": [], "err": []}

    async def until(self, start: str, stream: str = "err") -> str:
        """Its next line on stderr, or stdout, that begins with `start`."""
        source = self.process.stderr if stream == "err" else self.process.stdout
        assert source is not None
        async with asyncio.timeout(PATIENCE):
            async for octets in source:
                line = octets.decode("utf-8").rstrip()
                self._seen[stream].append(line)
                if line.startswith(start):
                    return line
        raise AssertionError(f"it ended without {start!r}: {self._seen}")

    async def outcome(self) -> Outcome:
        """Waits for its end."""
        async with asyncio.timeout(PATIENCE):
            out, err = await self.process.communicate()
        status = self.process.returncode
        assert status is not None
        outs = [*self._seen["out"], *out.decode("utf-8").splitlines()]
        errs = [*self._seen["err"], *err.decode("utf-8").splitlines()]
        return Outcome(status, "\n".join(outs), "\n".join(errs))


def _hear_hangups() -> None:
    """The tests themselves may run where SIGHUP is ignored, which children inherit."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@asynccontextmanager
async def program(*args: str) -> AsyncIterator[Program]:
    """Starts `kvcs` with `args`; it is gone at the end."""
    paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-W", "error", "-m", "kvcs", *args),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        preexec_fn=_hear_hangups,
    )
    try:
        yield Program(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
