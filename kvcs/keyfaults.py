"""What `cryptography` lets out at a key or certificate that it cannot take; it documents ValueError alone.

OpenSSL fails at some in ways of its own (InternalError), a curve or a kind of key may be unknown to it
(UnsupportedAlgorithm), and much of a certificate is parsed only when it is looked at.
"""

from __future__ import annotations

from cryptography import x509
from cryptography.exceptions import InternalError, UnsupportedAlgorithm

KEY_FAULTS = (ValueError, TypeError, UnsupportedAlgorithm, InternalError)
"""TypeError is also for a key under a password."""
CERTIFICATE_FAULTS = (
    *KEY_FAULTS,
    x509.DuplicateExtension,
    x509.ExtensionNotFound,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
