"""kvcs.cli.relay: relays in processes of their own, on real sockets, and what the command refuses."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from kvcs.cli.main import main
from kvcs.cli.verify import compare
from kvcs.formats.safetensors import KvFile
from tests.support.cli import PATIENCE, Files, Out, Program, kvcs, program

LISTEN = ["--listen", "127.0.0.1:0"]


@asynccontextmanager
async def relaying(directory: Path, name: str, *args: str) -> AsyncIterator[tuple[str, Program]]:
    """A relay in a process of its own: its URL, and itself."""
    ready = directory / f"{name}.json"
    shown = [
        "--cert",
        str(directory / "server.pem"),
        "--key",
        str(directory / "server-key.pem"),
    ]
    async with program("relay", *LISTEN, *shown, "--ready-file", str(ready), *args) as relay:
        await relay.until("kvcs: relaying at ")
        yield json.loads(ready.read_text("utf-8"))["url"], relay


@pytest.fixture
def shared(files: Files, certificates: Path) -> Files:
    """The files with certificates beside them."""
    for path in certificates.glob("*.pem"):
        (files.directory / path.name).write_bytes(path.read_bytes())
    return files


def ca(files: Files) -> list[str]:
    return ["--ca", str(files.directory / "ca.pem")]


def publish(files: Files, url: str, *args: str) -> list[str]:
    return ["publish", files.cache, *files.key, "--relay", url, *ca(files), *args]


def identical(files: Files) -> bool:
    with KvFile(files.cache) as sent, KvFile(files.output) as copy:
        return compare(sent, copy).identical


@pytest.mark.usefixtures("either_loop")
async def test_a_cache_passes_two_relays_live_and_late(shared: Files, capsys: Out) -> None:
    """R1, R4: over sockets, in five processes; SIGTERM lets everybody finish, and ends with status 0."""
    here = shared.directory
    async with AsyncExitStack() as stack:
        url_a, relay_a = await stack.enter_async_context(relaying(here, "a"))
        upstream = ["--upstream", url_a, *ca(shared)]
        url_b, relay_b = await stack.enter_async_context(relaying(here, "b", *upstream))
        async with program(*publish(shared, url_a, "--live-rate", "5")) as publisher:
            await publisher.until("publication ")
            for _ in range(2):
                got = await kvcs(capsys, *shared.subscribe(url_b, *ca(shared)))
                assert got.status == 0, got.err
                assert got.json["status"] == "complete"
                assert identical(shared)
                shared.output.unlink()
        for relay in (relay_b, relay_a):
            relay.process.send_signal(signal.SIGTERM)
            ended = await relay.outcome()
            assert ended.status == 0
            assert "Traceback" not in ended.err


async def test_three_terminals_need_no_certificates_on_loopback(files: Files, capsys: Out) -> None:
    """The commands of README.md: a relay with a throw-away CA, whose peers do not check it."""
    async with program("relay", *LISTEN) as relay:
        url = (await relay.until("kvcs: relaying at ")).rpartition(" ")[2]
        offered = ["publish", files.cache, *files.key, "--relay", url, "--insecure"]
        async with program(*offered, "--live-rate", "10") as publisher:
            await publisher.until("publication ")
            got = await kvcs(capsys, *files.subscribe(url, "--insecure"))
            assert got.status == 0, got.err
            assert got.json["source"] == url
            assert identical(files)


async def test_a_relay_that_is_not_there_keeps_no_other_waiting(shared: Files, capsys: Out) -> None:
    """Whichever is named first; and it has the publication as soon as it is there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    late = f"moqt://127.0.0.1:{port}"
    async with (
        relaying(shared.directory, "a") as (url, _),
        program(*publish(shared, late, "--relay", url)) as publisher,
    ):
        await publisher.until(f"{late} cannot be reached yet")
        await publisher.until("publication ")
        got = await kvcs(capsys, *shared.subscribe(url, *ca(shared)))
        assert got.status == 0, got.err
        shared.output.unlink()
        async with relaying(shared.directory, "late", "--listen", f"127.0.0.1:{port}"):
            got = await kvcs(capsys, *shared.subscribe(late, *ca(shared), "--wait", "20"))
            assert got.status == 0, got.err
            assert identical(shared)


async def test_no_relay_is_there(shared: Files, capsys: Out) -> None:
    ended = await kvcs(
        capsys, *publish(shared, "moqt://127.0.0.1:1", "--relay", "moqt://127.0.0.1:2")
    )
    assert "127.0.0.1:1" in ended.complaint(1)


async def test_a_publisher_that_is_killed_leaves_an_exact_report(
    shared: Files, capsys: Out
) -> None:
    async with relaying(shared.directory, "a") as (url, _):
        async with program(*publish(shared, url, "--live-rate", "1")) as publisher:
            await publisher.until("layer")
            publisher.process.kill()
            await publisher.outcome()
        got = await kvcs(capsys, *shared.subscribe(url, *ca(shared), "--deadline", "2"))
        assert got.status in {3, 4}
        assert shared.nothing_written()


def usage(capsys: Out, *args: str) -> str:
    assert main(["relay", *args]) == 2
    return capsys.readouterr().err


def test_what_it_refuses(shared: Files, capsys: Out) -> None:
    """A relay that others reach needs a policy; files and URLs are looked at before anything is opened."""
    here = shared.directory
    pem = ["--cert", str(here / "server.pem"), "--key", str(here / "server-key.pem")]
    assert "nothing says who may use" in usage(capsys, "--listen", "0.0.0.0:4443", *pem)
    assert "--cert and --key go together" in usage(capsys, *LISTEN, *pem[:2])
    assert "cannot read" in usage(capsys, *LISTEN, "--cert", "none", "--key", "none")
    assert "--listen" in usage(capsys)
    assert "moqt://" in usage(capsys, *LISTEN, "--upstream", "https://x")
    assert "not on loopback" in usage(
        capsys, *LISTEN, "--upstream", "moqt://192.0.2.1", "--insecure"
    )
    assert "cache-bytes" in usage(capsys, *LISTEN, "--cache-bytes", "-1")
    assert "not a place" in usage(capsys, *LISTEN, "--ready-file", str(here / "no" / "r"))


@pytest.mark.parametrize("streams", [(0,), (1,), (2,), (0, 1, 2)])
def test_standard_streams_that_are_closed(streams: tuple[int, ...], tmp_path: Path) -> None:
    """As a supervisor may leave them: no socket gets their numbers, which would end the process with SIGABRT."""

    def close() -> None:
        for number in streams:
            os.close(number)

    ready = tmp_path / "ready.json"
    command = [sys.executable, "-m", "kvcs", "relay", *LISTEN, "--ready-file", str(ready)]
    process = subprocess.Popen(  # noqa: S603 - our own program
        command,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        preexec_fn=close,  # noqa: PLW1509 - no threads of ours
    )
    try:
        until = time.monotonic() + PATIENCE
        while not ready.exists() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        assert ready.exists()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()


async def test_a_port_that_is_taken(shared: Files, capsys: Out) -> None:
    async with relaying(shared.directory, "first") as (url, _):
        ended = await kvcs(capsys, "relay", "--listen", url.removeprefix("moqt://"))
    assert ended.complaint(1).endswith(": Address already in use")
