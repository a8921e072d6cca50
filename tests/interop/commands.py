"""`kvcs publish` and `kvcs subscribe` themselves, each in a process of its own, with a relay between them."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kvcs.cli.verify import Comparison, compare
from kvcs.formats.safetensors import KvFile
from tests.support.caches import REAL_CACHE, REAL_DESCRIPTOR, descriptor, write_cache
from tests.support.cli import Program, program


@dataclass
class Files:
    """A cache, its descriptor, a scope key, and a place for what is received.

    Every scenario has a key of its own: a relay goes on offering what the killed publishers of others had.
    """

    directory: Path
    cache: Path
    descriptor: Path
    received: int = field(default=0)

    @classmethod
    def real(cls, directory: Path) -> Files:
        """The cache of a real model: 30 layers, 2 blocks, 24 KiB Objects."""
        (directory / "scope.key").write_bytes(secrets.token_bytes(32))
        return cls(directory, REAL_CACHE, REAL_DESCRIPTOR)

    @classmethod
    def made(cls, directory: Path, blocks: int = 8, **changes: object) -> Files:
        """A cache of `blocks` blocks that differ everywhere; 12 layers and 4 KiB Objects without `changes`."""
        (directory / "scope.key").write_bytes(secrets.token_bytes(32))
        of = descriptor(**{"layers": 12, "head_dim": 64, "block_tokens": 16} | changes)
        cache = write_cache(directory / "cache", of, blocks * of.block_tokens)
        return cls(directory, cache, cache)

    def _prompt(self) -> list[str]:
        words = ["--scope-key", str(self.directory / "scope.key")]
        return [*words, "--descriptor", str(self.descriptor), "--tokens", str(self.cache), "--json"]

    def publish(self, url: str, ca: str, *more: str) -> list[str]:
        """The words of `kvcs publish`."""
        return ["publish", str(self.cache), "--relay", url, "--ca", ca, *self._prompt(), *more]

    def subscribe(self, url: str, ca: str, *more: str) -> tuple[Path, list[str]]:
        """Where the cache will be, and the words of `kvcs subscribe`."""
        self.received += 1
        output = self.directory / f"received-{self.received}"
        words = ["subscribe", url, "--ca", ca, *self._prompt(), "--output", str(output), *more]
        return output, words

    def compared(self, output: Path) -> Comparison:
        """What was received beside what was published."""
        with KvFile(self.cache) as mine, KvFile(output) as theirs:
            return compare(mine, theirs)


class Scene:
    """Commands that run at the same time, all gone at the end."""

    def __init__(self, files: Files, url: str, ca: str, stack: AsyncExitStack) -> None:
        self.files = files
        self.url = url
        self._ca = ca
        self._stack = stack

    async def start(self, words: list[str]) -> Program:
        """Any command."""
        return await self._stack.enter_async_context(program(*words))

    async def publisher(self, *more: str) -> Program:
        """A publisher that has announced its publication."""
        started = await self.start(self.files.publish(self.url, self._ca, *more))
        await started.until("publication ")
        return started

    async def consumer(self, *more: str) -> tuple[Path, Program]:
        """A consumer that has started."""
        output, words = self.files.subscribe(self.url, self._ca, *more)
        return output, await self.start(words)

    async def received(self, *more: str) -> Comparison:
        """What a consumer gets that starts now and is content in the end."""
        output, started = await self.consumer(*more)
        await whole(started)
        return self.files.compared(output)


async def whole(consumer: Program) -> dict[str, object]:
    """The report of a consumer that is content."""
    outcome = await consumer.outcome()
    assert outcome.status == 0, outcome.err
    report = outcome.json
    assert report["status"] == "complete"
    assert report["missing"] == []
    assert report["discarded"] == 0
    return report


@asynccontextmanager
async def scene(files: Files, url: str, ca: str) -> AsyncIterator[Scene]:
    """Commands around a relay."""
    async with AsyncExitStack() as stack:
        yield Scene(files, url, ca, stack)
