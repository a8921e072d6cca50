"""aiomoqt's moq-interop-client, a conformance test of relays, at `kvcs relay`."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.harness import PEERS, ROOT, environment, kvcs_relay

PEER = "aiomoqt 0.13.3 conformance client"
DEFAULT = (
    "setup-only",
    "announce-only",
    "publish-namespace-done",
    "subscribe-error",
    "rendezvous-timeout",
    "announce-subscribe",
    "subscribe-before-announce",
    "data-subgroup-basic",
    "subscribe-namespace-lifecycle",
    "namespace-discovery",
    "publish-track-only",
    "publish-track-subscribe",
)
"""What it runs when nothing is named."""
NAMED = ("fetch", "join")
"""Cases that have to be asked for."""
PATIENCE = 60.0
"""Seconds after which it hangs; its own limits are below 10 s a case."""
_POINT = re.compile(r"^(ok|not ok) \d+ - (\S+)", re.MULTILINE)

Round = dict[str, bool]


class Rounds:
    """What every case came to in every round, and what the client said of it."""

    def __init__(self) -> None:
        self.done: list[Round] = []
        self.said: list[str] = []


def run(url: str, *words: str) -> tuple[Round, str]:
    """One process of the client: what each case that it ran came to, and all it said."""
    command = [str(PEERS / "moq-interop-client"), "-r", url, "--tls-disable-verify"]
    ran = subprocess.run(  # noqa: S603 - the peer's own program
        [*command, "--draft", "22", *words],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    found = {case: verdict == "ok" for verdict, case in _POINT.findall(ran.stdout)}
    assert (ran.returncode == 0) is (bool(found) and all(found.values())), ran.stdout
    return found, ran.stdout


@pytest.fixture(scope="module")
def rounds(certificates: Path, pytestconfig: pytest.Config) -> Iterator[Rounds]:
    """All cases, as often as the command line says, at one relay."""
    rounds = Rounds()
    with kvcs_relay(certificates) as url:
        for _ in range(pytestconfig.getoption("--rounds")):
            found: Round = {}
            for words in ((), *(("-t", case) for case in NAMED)):
                part, said = run(url, *words)
                found |= part
                rounds.said.append(said)
            rounds.done.append(found)
        yield rounds


@pytest.mark.parametrize("case", DEFAULT + NAMED)
def test_case(rounds: Rounds, case: str) -> None:
    """At `kvcs relay`, draft 22."""
    failed = [number for number, found in enumerate(rounds.done, 1) if not found.get(case)]
    assert not failed, f"failed in rounds {failed}\n{'-' * 70}\n".join(["", *rounds.said])


def test_nothing_else_is_in_the_default_set(rounds: Rounds) -> None:
    """The client has no case that is not listed here."""
    assert {case for found in rounds.done for case in found} == {*DEFAULT, *NAMED}
