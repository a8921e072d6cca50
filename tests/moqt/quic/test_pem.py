"""Certificate files, as the optional backends read them."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.exceptions import InternalError
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from moqt.errors import LocalError
from moqt.quic import pem as files
from moqt.quic.base import ClientTls, ServerTls
from tests.support.keys import SHORT_ED448
from tests.support.quic import server_tls


def test_trusted_certificates(certificates: Path, tmp_path: Path) -> None:
    pem = certificates / "ca.pem"
    assert files.read_trusted(ClientTls(ca_file=pem)) == pem.read_bytes()
    assert files.read_trusted(ClientTls(ca_file=pem, verify=False)) is None
    assert files.read_trusted(ClientTls()) is None
    for content in (b"", b"\xff\xfe", b"-----BEGIN CERTIFICATE-----\nAAAA\n"):
        bad = tmp_path / "bad.pem"
        bad.write_bytes(content)
        with pytest.raises(LocalError, match="cannot use the certificates"):
            files.read_trusted(ClientTls(ca_file=bad))
    with pytest.raises(LocalError, match="cannot use the certificates"):
        files.read_trusted(ClientTls(ca_file=tmp_path / "none.pem"))


def test_a_fault_is_told_in_one_line() -> None:
    """What OpenSSL leaves behind is several lines for those who maintain `cryptography`."""
    with pytest.raises(InternalError) as caught:
        load_pem_private_key(SHORT_ED448, None)
    assert files.reason(caught.value) == "OpenSSL does not take it"
    assert files.reason(ValueError("one\n  two")) == "one two"


def test_a_certificate_and_its_key(certificates: Path, tmp_path: Path) -> None:
    files.check_pair(server_tls(certificates))
    pair = server_tls(certificates)
    with pytest.raises(LocalError, match="cannot use"):
        files.check_pair(
            ServerTls(certificate=pair.certificate, private_key=certificates / "client-key.pem")
        )
    with pytest.raises(LocalError, match="cannot read"):
        files.check_pair(ServerTls(certificate=tmp_path / "none.pem", private_key=pair.private_key))
