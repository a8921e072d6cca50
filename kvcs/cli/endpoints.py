"""Addresses, URLs and certificates, as flags give them."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from kvcs import certs
from kvcs.errors import UsageError
from kvcs.keyfaults import CERTIFICATE_FAULTS, KEY_FAULTS
from kvcs.reading import read_up_to, unreadable
from moqt import ClientTls, ServerTls, is_loopback, parse_url
from moqt.errors import ConnectError, LocalError

LISTEN_PORT = 4443
CA_NAME = "ca.pem"
MAX_PEM = 16 << 20
"""Octets of a file of keys or certificates; what a system trusts has a few hundred thousand."""

_log = logging.getLogger(__name__)

_HINTS = {
    "unreachable": "see that a publisher or relay listens there and that UDP gets through",
    "alpn": "it does not speak moqt-22, the only draft spoken here",
    "tls": "give the CA of its certificate with --ca FILE (on loopback --insecure does without)",
    "refused": "its log may tell why",
}


def parse_listen(text: str) -> tuple[str, int]:
    """Host and port of HOST[:PORT], IPv6 in brackets; without a port 4443, without a host all addresses."""
    expected = "listen: expected HOST:PORT, IPv6 in brackets"
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
        if not bracket or not host or (rest and not rest.startswith(":")):
            raise UsageError(f"{expected}, got {text!r}")
    else:
        host, _, port = text.partition(":")
        if ":" in port:
            raise UsageError(f"{expected}, got {text!r}")
    if not port:
        return host, LISTEN_PORT
    if not port.isascii() or not port.isdigit() or len(port) > 5 or int(port) > 65535:
        raise UsageError(f"{expected}: {port!r} is no port")
    return host, int(port)


def checked_urls(urls: Sequence[str]) -> list[str]:
    """The URLs with their ports; raises UsageError for what is none."""
    try:
        return [str(parse_url(url)) for url in urls]
    except LocalError as fault:
        raise UsageError(str(fault)) from None


def client_tls(urls: Sequence[str], ca: Path | None, insecure: bool) -> ClientTls:
    """How the servers at `urls` are checked. `--insecure` is refused for anything but loopback."""
    if ca is not None and insecure:
        raise UsageError("--ca and --insecure exclude each other")
    if ca is not None:
        certificates("ca", ca)
    check_insecure(urls, insecure=insecure)
    if insecure:
        _log.warning("certificates are not checked")
    return ClientTls(ca_file=ca, verify=not insecure)


def check_insecure(urls: Sequence[str], *, insecure: bool) -> None:
    """Raises UsageError where certificates would go unchecked beyond this machine."""
    for url in urls:
        if insecure and not is_loopback(parse_url(url).host):
            raise UsageError(
                f"--insecure: {url} is not on loopback; give the CA of its certificate with --ca"
            )


def check_listen_tls(host: str, cert: Path | None, key: Path | None) -> None:
    """Raises UsageError where the flags do not say what to show to clients."""
    if cert is None and key is None:
        if not is_loopback(host):
            raise UsageError(
                f"--listen {host or 'on all addresses'} needs --cert and --key; "
                "throw-away certificates are for loopback only"
            )
        return
    if cert is None or key is None:
        raise UsageError("--cert and --key go together")
    check_pair("cert", cert, "key", key)


def check_pair(what: str, cert: Path, what_key: str, key: Path) -> None:
    """Raises UsageError unless both files can be read and belong together."""
    chain = certificates(what, cert)
    try:
        private = serialization.load_pem_private_key(_read(what_key, key), None)
    except KEY_FAULTS:
        raise UsageError(f"{what_key}: {key} holds no PEM private key without a password") from None
    try:
        certified = chain[0].public_key()
    except CERTIFICATE_FAULTS:
        raise UsageError(
            f"{what}: {cert} certifies a key that cannot be used here; take RSA, P-256 or Ed25519"
        ) from None
    if private.public_key() != certified:
        raise UsageError(f"{what_key}: {key} is not the key of {cert}")


def certificates(what: str, path: Path) -> list[x509.Certificate]:
    """The certificates in a PEM file; raises UsageError."""
    try:
        return x509.load_pem_x509_certificates(_read(what, path))
    except CERTIFICATE_FAULTS:
        raise UsageError(f"{what}: {path} holds no PEM certificates that can be read") from None


def _read(what: str, path: Path) -> bytes:
    try:
        data = read_up_to(path, MAX_PEM + 1)
    except OSError as fault:
        raise unreadable(what, path, fault, f"--{what}") from None
    if len(data) > MAX_PEM:
        raise UsageError(f"{what}: {path} has more than {MAX_PEM} octets")
    return data


@contextmanager
def throw_away(host: str, ca: Path) -> Iterator[ServerTls]:
    """A certificate for a server on loopback. Its CA's certificate is written to `ca`; all keys are
    gone at the end of the block, once the server has read them.
    """
    with tempfile.TemporaryDirectory(prefix="kvcs-keys-") as name:
        keys = Path(name)
        certs.make(keys, dict.fromkeys((*certs.LOOPBACK, host)))
        shutil.copyfile(keys / CA_NAME, ca)
        yield ServerTls(certificate=keys / "server.pem", private_key=keys / "server-key.pem")


def place_of_ca(ready_file: Path) -> Path:
    """ca.pem beside the ready file, unless somebody else's lies there."""
    place = ready_file.with_name(CA_NAME)
    if not place.exists() or (_is_throw_away(place) and not place.with_name("ca-key.pem").exists()):
        return place
    return ready_file.with_name(f"{ready_file.name}.{CA_NAME}")


def _is_throw_away(path: Path) -> bool:
    try:
        subject = x509.load_pem_x509_certificate(path.read_bytes()).subject
    except (OSError, *CERTIFICATE_FAULTS):
        return False
    return subject.rfc4514_string() == f"CN={certs.AUTHORITY}"


def hint(fault: ConnectError) -> str:
    """What went wrong and what to do about it, in one line."""
    return f"{fault.reason}; {_HINTS.get(fault.kind, 'its log may tell why')}"
