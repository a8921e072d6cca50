"""Certificates of clients, as a server on aioquic asks for and checks them (RFC 8446 sections 4.3.2 and 4.4).

The library can ask for one and finds out whether the client has its key, but neither insists on one nor looks whose it
is. Both are done here, within the handshake and before the server takes the client's Finished: chain, validity and
purpose by `cryptography`. The hooks are private to the library; where one is missing, nobody can listen like that.
"""

from __future__ import annotations

from collections.abc import Sequence

from aioquic.buffer import Buffer  # type: ignore[attr-defined]
from aioquic.tls import Alert, AlertDescription, Context
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from moqt.errors import LocalError
from moqt.quic.pem import CERTIFICATE_FAULTS, reason

HOOKS = (
    "_peer_certificate",
    "_peer_certificate_chain",
    "_request_client_certificate",
    "_server_handle_certificate",
    "_server_handle_certificate_verify",
    "get_session_ticket_cb",
)


class CertificateRequired(Alert):
    """The client showed no certificate."""

    description = AlertDescription.certificate_required


class BadCertificate(Alert):
    """The client's certificate is not one of those that are trusted here."""

    description = AlertDescription.bad_certificate


class ClientCheck:
    """Whom a server lets in: who shows a certificate that leads to one of `authorities`."""

    def __init__(self, authorities: Sequence[x509.Certificate]) -> None:
        lacking = [name for name in HOOKS if not hasattr(Context(is_client=False), name)]
        if lacking:
            raise LocalError(
                f"this aioquic cannot ask for certificates of clients: it has no {', '.join(lacking)}"
            )
        self._store = Store(list(authorities))

    def watch(self, context: Context) -> None:
        """Asks for a certificate in this handshake, and ends it where none is shown or it is not good."""
        # A resumed session brings no certificate; none is resumed as long as nobody hands out tickets.
        if context.get_session_ticket_cb is not None:
            raise LocalError("certificates of clients and resumed sessions exclude each other")
        take = context._server_handle_certificate
        prove = context._server_handle_certificate_verify

        def certificate(buffer: Buffer) -> None:
            take(buffer)
            if context._peer_certificate is None:
                raise CertificateRequired("a client certificate is required")

        def certificate_verify(buffer: Buffer) -> None:
            prove(buffer)
            leaf = context._peer_certificate
            if leaf is None:
                raise CertificateRequired("a client certificate is required")
            self._check(leaf, context._peer_certificate_chain)

        context._request_client_certificate = True
        setattr(context, "_server_handle_certificate", certificate)  # noqa: B010
        setattr(context, "_server_handle_certificate_verify", certificate_verify)  # noqa: B010

    def _check(self, leaf: x509.Certificate, chain: Sequence[x509.Certificate]) -> None:
        try:
            verifier = PolicyBuilder().store(self._store).build_client_verifier()
            verifier.verify(leaf, list(chain))
        except VerificationError as error:
            raise BadCertificate(f"the client certificate is not trusted here: {error}") from None
        except CERTIFICATE_FAULTS as error:
            told = f"the client certificate cannot be read: {reason(error)}"
            raise BadCertificate(told) from None


def shown(context: Context) -> bytes | None:
    """DER of the certificate that a watched handshake ended with."""
    certificate = context._peer_certificate
    return None if certificate is None else certificate.public_bytes(Encoding.DER)
