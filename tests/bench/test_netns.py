"""tests/bench/netns.sh: a cache over the kernel's own slow link, where the machine lets us make one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvcs.certs import make
from kvcs.cli.verify import compare
from kvcs.formats.safetensors import KvFile
from tests.support.cli import REPOSITORY, Files

SCRIPT = Path(__file__).with_name("netns.sh")
SKIPPED = 77
ADDRESS = "10.73.0.1"


def netns(*words: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs it; `path` in place of PATH."""
    env = os.environ | {"PYTHONPATH": str(REPOSITORY)} | ({"PATH": path} if path else {})
    return subprocess.run(  # noqa: S603 - our own script
        ["/bin/bash", str(SCRIPT), *words], env=env, capture_output=True, text=True, check=False
    )


def left() -> list[str]:
    """Namespaces of ours that are still there."""
    place = Path("/run/netns")
    return [p.name for p in place.glob("kvcs-*")] if place.is_dir() else []


def test_a_cache_over_a_shaped_link(tmp_path: Path) -> None:
    files = Files.make(tmp_path)
    make(tmp_path, [ADDRESS])
    kvcs = [sys.executable, "-m", "kvcs"]
    shown = ["--cert", f"{tmp_path}/server.pem", "--key", f"{tmp_path}/server-key.pem"]
    server = ["publish", files.cache, *files.key, "--listen", f"{ADDRESS}:4443", *shown]
    client = files.subscribe(f"moqt://{ADDRESS}:4443", "--ca", f"{tmp_path}/ca.pem")
    ran = netns("--rate", "10mbit", "--", *kvcs, *server, "--", *kvcs, *client)
    if ran.returncode == SKIPPED:
        pytest.skip(ran.stderr.strip())
    assert ran.returncode == 0, ran.stderr
    assert '"status": "complete"' in ran.stdout
    with KvFile(files.cache) as sent, KvFile(files.output) as copy:
        assert compare(sent, copy).identical
    assert left() == []


def test_the_clients_status_is_handed_on_and_nothing_is_left() -> None:
    bind = "import socket, time; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('', 1)); time.sleep(60)"
    ran = netns("--", sys.executable, "-c", bind, "--", sys.executable, "-c", "exit(7)")
    if ran.returncode == SKIPPED:
        pytest.skip(ran.stderr.strip())
    assert (ran.returncode, left()) == (7, [])
    ran = netns("--", "false", "--", "true")
    assert (ran.returncode, left()) == (1, [])
    assert "the server ended before it listened" in ran.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("", "no server"),
        ("-- --", "no server"),
        ("-- a", "no client"),
        ("-- a --", "no client"),
        ("--rate", "--rate has no value"),
        ("--speed 1 -- a -- b", "there is no --speed"),
    ],
)
def test_usage(words: str, why: str) -> None:
    ran = netns(*words.split())
    assert ran.returncode == 2
    assert why in ran.stderr


def test_where_the_tools_are_missing_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "id").write_text("#!/bin/bash\necho 0\n")
    (tmp_path / "id").chmod(0o755)
    ran = netns("--", "a", "--", "b", path=str(tmp_path))
    assert (ran.returncode, ran.stderr) == (
        SKIPPED,
        "netns.sh: skipped: it needs ip, of iproute2\n",
    )
    (tmp_path / "id").write_text("#!/bin/bash\necho 1000\n")
    ran = netns("--", "a", "--", "b", path=str(tmp_path))
    assert (ran.returncode, ran.stderr) == (SKIPPED, "netns.sh: skipped: it needs root\n")
