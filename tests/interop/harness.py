"""Programs of others, each in a process of its own with the Python that has them."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from moqt import ClientTls, TrackNamespace, connect

ROOT = Path(__file__).resolve().parent.parent.parent
PEERS = ROOT / ".venv-interop" / ("Scripts" if sys.platform == "win32" else "bin")
PATIENCE = 30.0
"""Seconds after which a peer hangs."""
DIRECT, RELAYED = "direct", "through `kvcs relay`"
"""The two ways that scenarios with ends of others take."""


def missing() -> str | None:
    """Why nothing can be run here."""
    if (PEERS / "python").exists():
        return None
    return (
        "the peers are not installed: `make interop` sets them up, with a Python of 3.12 or newer"
    )


def environment() -> dict[str, str]:
    """What a peer runs with. None of our own settings reach it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return kept | {"PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT)}


def is_free(port: int) -> bool:
    """Whether nobody has a UDP port at this moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(("0.0.0.0", port))  # noqa: S104 - where the relay listens, whatever it is told
        except OSError:
            return False
    return True


def free_port() -> int:
    """A UDP port that nobody has, and that no client is given before the relay takes it."""
    return next(p for p in (random.randrange(20_000, 32_000) for _ in range(1000)) if is_free(p))


def until_taken(port: int) -> None:
    """Waits for somebody to have a port, for programs that say so before they do."""
    until = time.monotonic() + PATIENCE
    while is_free(port) and time.monotonic() < until:
        time.sleep(0.01)


class Started(NamedTuple):
    """A program that runs."""

    line: str
    """Of its output, by which it said that it was ready."""
    pid: int


@contextmanager
def running(*command: str, ready: str) -> Iterator[Started]:
    """A program that goes on until the block ends; it is ready when a line of its output holds `ready`."""
    process = subprocess.Popen(  # noqa: S603 - the peers' own programs
        command,
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        said: list[str] = []
        while ready not in "".join(said[-1:]):
            line = lines.get(timeout=PATIENCE)
            if line is None:
                raise AssertionError(f"{command[0]} ended: {''.join(said)}")
            said.append(line)
        yield Started(said[-1].strip(), process.pid)
    finally:
        process.kill()
        process.wait()
        reader.join(PATIENCE)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def aiomoqt_relay(certificates: Path) -> Iterator[str]:
    """moq-interop-relay; yields its URL."""
    port = free_port()
    command = [str(PEERS / "moq-interop-relay"), "--bind", "127.0.0.1", "--port", str(port)]
    command += ["--quic", "--draft", "22", "--cert", str(certificates / "server.pem")]
    command += ["--key", str(certificates / "server-key.pem")]
    with running(*command, ready="Listening on"):
        until_taken(port)
        yield f"moqt://127.0.0.1:{port}"


@contextmanager
def moqrs_server(certificates: Path) -> Iterator[str]:
    """A moq-rs server whose sessions share one origin; yields its URL."""
    module = "tests.interop.peers.moqrs_server"
    files = [str(certificates / name) for name in ("server.pem", "server-key.pem")]
    python = str(PEERS / "python")
    with running(python, "-m", module, "127.0.0.1:0", *files, ready='"address"') as started:
        yield f"moqt://{json.loads(started.line)['address']}"


@contextmanager
def kvcs_relay(certificates: Path, *words: str) -> Iterator[str]:
    """`kvcs relay`; yields its URL."""
    command = [sys.executable, "-W", "error", "-m", "kvcs.cli.main", "relay", *words]
    command += ["--listen", "127.0.0.1:0", "--cert", str(certificates / "server.pem")]
    command += ["--key", str(certificates / "server-key.pem"), "--ca", str(certificates / "ca.pem")]
    with running(*command, ready="relaying at ") as started:
        yield started.line.rpartition(" ")[2]


async def announced(url: str, ca: str, namespace: TrackNamespace) -> None:
    """Waits until a relay has heard of a namespace."""
    async with asyncio.timeout(PATIENCE), await connect(url, tls=ClientTls(ca_file=Path(ca))) as s:
        async for event in await s.subscribe_namespace(namespace[:-1]):
            if event == (namespace, True):
                break


class Refused(Exception):
    """The peer's library raised; `code` is the error code of the protocol, if there is one."""

    def __init__(self, reason: str, code: int | None) -> None:
        super().__init__(reason)
        self.code = code


@dataclass
class Peer:
    """A peer program that takes commands."""

    process: asyncio.subprocess.Process

    async def __call__(self, do: str, **arguments: Any) -> dict[str, Any]:
        """One command. Raises Refused."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        async with asyncio.timeout(PATIENCE):
            while line := await self.process.stdout.readline():
                if line.startswith(b"{"):
                    answer: dict[str, Any] = json.loads(line)
                    if "error" in answer:
                        raise Refused(answer["error"], answer["code"])
                    return answer
        raise AssertionError(f"the peer ended in the middle of {do}")


@asynccontextmanager
async def peer(module: str) -> AsyncIterator[Peer]:
    """A program of tests/interop/peers; it is gone at the end."""
    process = await asyncio.create_subprocess_exec(
        str(PEERS / "python"),
        *("-m", f"tests.interop.peers.{module}"),
        cwd=ROOT,
        env=environment(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 24,
    )
    try:
        yield Peer(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
