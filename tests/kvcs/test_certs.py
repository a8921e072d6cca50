"""The throw-away certificates."""

from __future__ import annotations

import runpy
import stat
import sys
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from kvcs.certs import SKEW, VALID, make

NAMES = ("ca", "server", "client")
SCRIPT = Path(__file__).resolve().parents[2] / "certs" / "make.py"


def load(directory: Path, name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate((directory / f"{name}.pem").read_bytes())


def test_exactly_these_files_are_written(certificates: Path, tmp_path: Path) -> None:
    make(tmp_path / "new")
    written = {path.name for path in (tmp_path / "new").iterdir()}
    assert written == {f"{name}{part}.pem" for name in NAMES for part in ("", "-key")}


@pytest.mark.parametrize("name", NAMES)
def test_each_key_is_its_certificates_own_and_private(certificates: Path, name: str) -> None:
    path = certificates / f"{name}-key.pem"
    key = load_pem_private_key(path.read_bytes(), None)
    assert key.public_key() == load(certificates, name).public_key()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("name", "usage"),
    [
        ("server", ExtendedKeyUsageOID.SERVER_AUTH),
        ("client", ExtendedKeyUsageOID.CLIENT_AUTH),
    ],
)
def test_leaves_are_signed_for_one_use(
    certificates: Path, name: str, usage: x509.ObjectIdentifier
) -> None:
    ca, leaf = load(certificates, "ca"), load(certificates, name)
    leaf.verify_directly_issued_by(ca)
    assert list(leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [usage]
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert ca.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_the_server_has_the_names_asked_for(tmp_path: Path) -> None:
    make(tmp_path, ["cache.example", "192.0.2.7"])
    names = load(tmp_path, "server").extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert names.value.get_values_for_type(x509.DNSName) == ["cache.example"]
    assert names.value.get_values_for_type(x509.IPAddress) == [ip_address("192.0.2.7")]


def test_certificates_are_valid_for_14_days_from_an_hour_ago(tmp_path: Path) -> None:
    now = datetime(2030, 1, 1, 12, tzinfo=UTC)
    make(tmp_path, now=now)
    for name in NAMES:
        certificate = load(tmp_path, name)
        assert certificate.not_valid_before_utc == now - SKEW
        assert certificate.not_valid_after_utc == now - SKEW + VALID
    assert timedelta(days=14) == VALID


def test_making_them_again_replaces_them(tmp_path: Path) -> None:
    make(tmp_path)
    before = load(tmp_path, "server")
    (tmp_path / "server-key.pem").chmod(0o644)
    make(tmp_path)
    assert load(tmp_path, "server") != before
    assert stat.S_IMODE((tmp_path / "server-key.pem").stat().st_mode) == 0o600


def test_the_script_writes_where_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["make.py", "--directory", str(tmp_path), "cache.example"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    assert str(tmp_path) in capsys.readouterr().out
    assert load(tmp_path, "server") is not None
