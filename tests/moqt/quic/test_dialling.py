"""Addresses, certificate files and refusals, as the optional backends use them."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from moqt.errors import ConnectError, LocalError
from moqt.quic import dialling
from moqt.quic.base import ClientTls, ConnectionLost, ServerTls
from tests.support.quic import server_tls


@pytest.mark.parametrize(
    ("port", "listening", "good"),
    [(0, True, True), (0, False, False), (1, False, True), (65535, True, True)]
    + [(65536, listening, False) for listening in (True, False)]
    + [(-1, listening, False) for listening in (True, False)],
)
def test_ports(port: int, listening: bool, good: bool) -> None:
    if good:
        dialling.check_port(port, listening=listening)
    else:
        with pytest.raises(LocalError, match="no port"):
            dialling.check_port(port, listening=listening)


def test_endpoints_are_written_as_people_write_them() -> None:
    assert dialling.endpoint("::1", 4) == "[::1]:4"
    assert dialling.endpoint("localhost", 4) == "localhost:4"


async def test_an_address_resolves_to_itself_once() -> None:
    deadline = asyncio.get_running_loop().time() + 5
    found = await dialling.resolve("127.0.0.1", 9, deadline)
    assert [address for _, address in found] == [("127.0.0.1", 9)]


@pytest.mark.parametrize("host", ["a..b", "x" * 70, "\ud800"])
async def test_what_cannot_be_resolved(host: str) -> None:
    deadline = asyncio.get_running_loop().time() + 5
    with pytest.raises(ConnectError) as caught:
        await dialling.resolve(host, 9, deadline)
    assert caught.value.kind == "unreachable"


async def test_a_deadline_in_the_past() -> None:
    with pytest.raises(ConnectError, match="not resolved in time"):
        await dialling.resolve("127.0.0.1", 9, asyncio.get_running_loop().time() - 1)


async def test_a_port_is_bound_once() -> None:
    with await dialling.bind("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(LocalError, match=f"cannot listen on 127.0.0.1:{port}"):
            await dialling.bind("127.0.0.1", port)
    with pytest.raises(LocalError, match="cannot listen on"):
        await dialling.bind("a..b", 0)


def test_trusted_certificates(certificates: Path, tmp_path: Path) -> None:
    pem = certificates / "ca.pem"
    assert dialling.read_trusted(ClientTls(ca_file=pem)) == pem.read_bytes()
    assert dialling.read_trusted(ClientTls(ca_file=pem, verify=False)) is None
    assert dialling.read_trusted(ClientTls()) is None
    for content in (b"", b"\xff\xfe", b"-----BEGIN CERTIFICATE-----\nAAAA\n"):
        bad = tmp_path / "bad.pem"
        bad.write_bytes(content)
        with pytest.raises(LocalError, match="cannot use the certificates"):
            dialling.read_trusted(ClientTls(ca_file=bad))
    with pytest.raises(LocalError, match="cannot use the certificates"):
        dialling.read_trusted(ClientTls(ca_file=tmp_path / "none.pem"))


def test_a_certificate_and_its_key(certificates: Path, tmp_path: Path) -> None:
    dialling.check_pair(server_tls(certificates))
    pair = server_tls(certificates)
    with pytest.raises(LocalError, match="cannot use"):
        dialling.check_pair(
            ServerTls(certificate=pair.certificate, private_key=certificates / "client-key.pem")
        )
    with pytest.raises(LocalError, match="cannot read"):
        dialling.check_pair(
            ServerTls(certificate=tmp_path / "none.pem", private_key=pair.private_key)
        )


@pytest.mark.parametrize(
    ("lost", "heard", "kind", "text"),
    [
        (ConnectionLost(1, "Connection refused", False, False), False, "unreachable", "refused"),
        (ConnectionLost(0x178, "", True, False), True, "alpn", "no common ALPN"),
        (ConnectionLost(0x128, "No common ALPN protocols", True, False), True, "alpn", "ALPN"),
        (ConnectionLost(0x128, "", True, False), True, "tls", "handshake failure"),
        (ConnectionLost(0x12A, "self-signed", False, False), True, "tls", "bad certificate: self"),
        (ConnectionLost(0x1FF, "", True, False), True, "tls", "alert 255"),
        (ConnectionLost(0x2, "busy", True, False), True, "refused", r"busy \(0x2\)"),
        (ConnectionLost(0x178, "", True, True), True, "refused", r"refused \(0x178\)"),
    ],
)
def test_why_a_handshake_failed(lost: ConnectionLost, heard: bool, kind: str, text: str) -> None:
    error = dialling.refusal("h:1", lost, heard=heard)
    assert error.kind == kind
    with pytest.raises(ConnectError, match=f"h:1: .*{text}"):
        raise error


def test_alerts_have_the_numbers_of_tls() -> None:
    assert ssl.AlertDescription.ALERT_DESCRIPTION_HANDSHAKE_FAILURE == dialling.HANDSHAKE_FAILURE


def test_a_peers_words_are_made_printable() -> None:
    assert dialling.printable("a\x1b[31mb\n") == "a?[31mb?"
