"""Which backends the tests of a run use, and what the optional ones cannot do."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache

import pytest

from moqt.config import TransportConfig
from moqt.errors import LocalError
from moqt.quic import backend as named
from moqt.quic.base import (
    Backend,
    ClientTls,
    Connection,
    HandlerFactory,
    Listener,
    ServerTls,
)
from moqt.quic.memory import MemoryBackend

PACKET_BY_PACKET = "aioquic packet by packet"
DEFAULT = ("aioquic", PACKET_BY_PACKET, "memory", "memory in pieces")
SOCKETS = ("aioquic",)
OVER_UDP = ("aioquic", "qh3", "aiopquic")
OWN_TESTS = {"test_qh3.py": "qh3", "test_aiopquic.py": "aiopquic"}
VARIABLE = "KVCS_TEST_BACKENDS"

HALF_WINDOW = (
    "delivers half of max_data to an application that consumes nothing, and holds the rest"
)
NO_MAX_DATA = "bounds what is ahead of the application stream by stream, not by max_data"
NO_REASON = "carries the code of a close, not its reason"
STREAM_LIMITS = "grants as many streams as the library has been built for"

CANNOT: dict[str, dict[str, str]] = {
    "qh3": {
        "test_a_reset_gives_back_what_was_not_sent": HALF_WINDOW,
        "test_a_receiver_that_consumes_nothing_stops_the_sender": HALF_WINDOW,
        "test_an_idle_reader_stops_the_sender": HALF_WINDOW,
        "test_stream_credit_runs_out_and_comes_back": STREAM_LIMITS,
    },
    "aiopquic": {
        "test_a_reset_gives_back_what_was_not_sent": NO_MAX_DATA,
        "test_a_receiver_that_consumes_nothing_stops_the_sender": NO_MAX_DATA,
        "test_an_idle_reader_stops_the_sender": NO_MAX_DATA,
        "test_close_carries_code_and_reason_to_the_peer": NO_REASON,
        "test_a_client_that_leaves": NO_REASON,
        "test_a_broken_rule_is_told_to_the_other_side": NO_REASON,
    },
}
"""Tests that a backend is excused from, each with the reason. docs/backends.md says the same."""


def add_option(parser: pytest.Parser) -> None:
    """Adds `--quic NAME`; it may be given more than once."""
    parser.addoption(
        "--quic",
        action="append",
        default=[],
        choices=OVER_UDP,
        metavar="NAME",
        help=f"run the tests that take a backend on this one ({', '.join(OVER_UDP)}); "
        f"the variable {VARIABLE} does the same with names separated by spaces",
    )


def selected(config: pytest.Config) -> tuple[str, ...]:
    """Names of the backends of this run. One that is not installed is an error, not a skip."""
    names = tuple(config.getoption("--quic")) or tuple(os.environ.get(VARIABLE, "").split())
    for name in names:
        check(name)
    return names


@cache
def check(name: str) -> None:
    """Raises pytest.UsageError for a backend that cannot be had."""
    try:
        named(name)
    except LocalError as error:
        raise pytest.UsageError(str(error)) from None


def build(name: str) -> Backend:
    """The backend of that name, those in memory included."""
    if name.startswith("memory"):
        return MemoryBackend(rechunk=4 if name == "memory in pieces" else None)
    return PacketByPacket() if name == PACKET_BY_PACKET else named(name)


class PacketByPacket:
    """The aioquic backend without its bulk path."""

    async def connect(
        self,
        host: str,
        port: int,
        *,
        alpn: list[str],
        tls: ClientTls,
        config: TransportConfig,
        handler: HandlerFactory,
    ) -> Connection:
        config = replace(config, bulk=False)
        return await named("aioquic").connect(
            host, port, alpn=alpn, tls=tls, config=config, handler=handler
        )

    async def listen(
        self,
        host: str,
        port: int,
        *,
        alpn: list[str],
        tls: ServerTls,
        config: TransportConfig,
        handler: HandlerFactory,
    ) -> Listener:
        config = replace(config, bulk=False)
        return await named("aioquic").listen(
            host, port, alpn=alpn, tls=tls, config=config, handler=handler
        )


def excuse(name: str, test: str) -> str | None:
    """Why this backend need not pass this test; None if it must."""
    reason = CANNOT.get(name, {}).get(test)
    return reason and f"{name} {reason}"
