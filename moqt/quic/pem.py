"""Files of keys and certificates: what may go wrong with them, and how the optional backends read them.

Those leave checks of clients to the default backend.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InternalError, UnsupportedAlgorithm

from moqt.errors import LocalError
from moqt.quic.base import ClientTls, ServerTls

CERTIFICATE_FAULTS = (
    ValueError,
    TypeError,
    InternalError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.ExtensionNotFound,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
"""What `cryptography`, which documents ValueError alone, lets out at a key or certificate that it cannot take."""
PEM_FAULTS = (OSError, *CERTIFICATE_FAULTS)  # ssl.SSLError is an OSError


def reason(fault: Exception) -> str:
    """What went wrong with a file, in one line."""
    if isinstance(fault, InternalError):  # several lines, for those who maintain the library
        return "OpenSSL does not take it"
    return " ".join(str(fault).split())


def check_client(tls: ClientTls) -> None:
    """Raises LocalError for what only the default backend does."""
    if tls.certificate is not None:
        raise LocalError("this QUIC backend shows no client certificate; use aioquic")


def read_trusted(tls: ClientTls) -> bytes | None:
    """The PEM of what the client trusts; None leaves that to the system. Raises LocalError."""
    if not tls.verify or tls.ca_file is None:
        return None
    try:
        pem = tls.ca_file.read_bytes()
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem.decode("ascii"))
    except PEM_FAULTS as error:
        raise LocalError(f"cannot use the certificates in {tls.ca_file}: {reason(error)}") from None
    return pem


def check_pair(tls: ServerTls) -> None:
    """Raises LocalError unless both files can be read and belong together."""
    if tls.client_ca is not None:
        raise LocalError("this QUIC backend cannot check client certificates; use aioquic")
    _read(tls.certificate)
    _read(tls.private_key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(tls.certificate, tls.private_key, password="")
    except PEM_FAULTS as error:
        raise LocalError(
            f"cannot use {tls.certificate} with the private key in {tls.private_key}: {reason(error)}"
        ) from None


def _read(path: Path) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        raise LocalError(f"cannot read {path}: {error.strerror or error}") from None
