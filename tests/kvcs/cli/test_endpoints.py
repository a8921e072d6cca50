"""kvcs.cli.endpoints: addresses and certificates."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
)

from kvcs import certs
from kvcs.cli.endpoints import (
    MAX_PEM,
    check_listen_tls,
    check_pair,
    checked_urls,
    client_tls,
    hint,
    parse_listen,
    place_of_ca,
    throw_away,
)
from kvcs.errors import UsageError
from kvcs.producer_keys import Algorithm, generate
from moqt.errors import ConnectError
from tests.support.keys import SHORT_ED448, as_pem, odd_certificate


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("127.0.0.1:1", ("127.0.0.1", 1)),
        ("host", ("host", 4443)),
        ("host:", ("host", 4443)),
        (":0", ("", 0)),
        ("[::1]:65535", ("::1", 65535)),
        ("[::1]", ("::1", 4443)),
    ],
)
def test_listen(text: str, where: tuple[str, int]) -> None:
    assert parse_listen(text) == where


@pytest.mark.parametrize(
    "text", ["::1", "[]:1", "[::1", "[::1]1", "h:65536", "h:-1", "h:1:2", "h:²"]
)
def test_no_place_to_listen(text: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        parse_listen(text)


def test_urls_get_their_ports() -> None:
    assert checked_urls(["moqt://a", "moqt://[::1]:1/x?y"]) == [
        "moqt://a:443",
        "moqt://[::1]:1/x?y",
    ]
    with pytest.raises(UsageError, match="moqt://host"):
        checked_urls(["a"])


def test_client(certificates: Path) -> None:
    tls = client_tls(["moqt://a"], certificates / "ca.pem", False)
    assert tls.ca_file == certificates / "ca.pem"
    assert tls.verify
    assert not client_tls(["moqt://localhost:1"], None, True).verify


def test_no_file_is_read_without_end(tmp_path: Path) -> None:
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(MAX_PEM + 1)
    with pytest.raises(UsageError, match=r"ca: .* has more than"):
        client_tls(["moqt://a"], large, False)
    with pytest.raises(UsageError, match=r"cert: .* has more than"):
        check_listen_tls("a", large, large)


@pytest.mark.parametrize("kind", ["version", "curve", "point"])
def test_a_certificate_that_cannot_be_used(kind: str, certificates: Path, tmp_path: Path) -> None:
    """One line that names it; much of a certificate is parsed only once it is asked for."""
    odd = tmp_path / "odd.pem"
    odd.write_bytes(as_pem(odd_certificate(certificates / "server.pem", kind)))
    with pytest.raises(UsageError, match=r"^cert: .*odd\.pem .*$") as caught:
        check_pair("cert", odd, "key", certificates / "server-key.pem")
    assert "\n" not in str(caught.value)


def test_a_ca_that_cannot_be_read(certificates: Path, tmp_path: Path) -> None:
    odd = tmp_path / "odd.pem"
    odd.write_bytes(as_pem(odd_certificate(certificates / "ca.pem", "version")))
    with pytest.raises(UsageError, match=r"ca: .*odd\.pem holds no PEM certificates"):
        client_tls(["moqt://a"], odd, False)


def test_a_key_that_cannot_be_used(certificates: Path, tmp_path: Path) -> None:
    key = tmp_path / "odd-key.pem"
    protected = generate(Algorithm.ES256).key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )
    for octets in (b"", SHORT_ED448, protected):
        key.write_bytes(octets)
        with pytest.raises(UsageError, match=r"key: .*odd-key\.pem holds no PEM private key"):
            check_pair("cert", certificates / "server.pem", "key", key)


def test_throw_away_keys_do_not_stay(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    with throw_away("127.0.0.2", ca) as tls:
        assert tls.certificate.is_file()
        assert tls.private_key.is_file()
        check_listen_tls("0.0.0.0", tls.certificate, tls.private_key)  # noqa: S104
    assert not tls.private_key.parent.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["ca.pem"]
    assert b"PRIVATE" not in ca.read_bytes()


def test_nobody_elses_ca_is_overwritten(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    ca, other = tmp_path / "ca.pem", tmp_path / "ready.json.ca.pem"
    assert place_of_ca(ready) == ca
    with throw_away("localhost", ca):
        assert place_of_ca(ready) == ca
    certs.make(tmp_path)
    assert place_of_ca(ready) == other
    (tmp_path / "ca-key.pem").unlink()
    ca.write_text("somebody else's", "utf-8")
    assert place_of_ca(ready) == other


@pytest.mark.parametrize("kind", ["version", "name"])
def test_somebody_elses_ca_may_be_odd(kind: str, certificates: Path, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes(as_pem(odd_certificate(certificates / "ca.pem", kind)))
    assert place_of_ca(tmp_path / "ready.json") == tmp_path / "ready.json.ca.pem"


@pytest.mark.parametrize("kind", ["unreachable", "alpn", "tls", "refused", "new"])
def test_every_failure_has_a_hint(kind: str) -> None:
    assert hint(ConnectError(kind, "reason")).startswith("reason; ")
