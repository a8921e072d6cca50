"""COSE structures as they were received, for pycose to check their seals.

A seal covers the protected header's octets, and `kvcs.envelope` has read them strictly. So pycose is told the algorithm
and never reads a header of a peer's: it makes keys and certificates of some labels, and raises what comes of that.
"""

from __future__ import annotations

from pycose import exceptions, headers
from pycose.messages.mac0message import Mac0Message
from pycose.messages.sign1message import Sign1Message

from kvcs.envelope import Parts

FAULTS: tuple[type[Exception], ...] = (
    exceptions.CoseException,
    exceptions.CoseIllegalAlgorithm,
    exceptions.CoseIllegalKeyOps,
    exceptions.CoseIllegalKeyType,
    exceptions.CoseInvalidKey,
    exceptions.CoseMalformedMessage,
    exceptions.CoseUnsupportedCurve,
    ValueError,
    TypeError,
    AttributeError,
    AssertionError,
    LookupError,
)
"""What pycose is known to raise; its own exceptions have no base in common."""


class _AsReceived:
    """Its protected header is a peer's octets, whatever pycose would write."""

    received: bytes

    @property
    def phdr_encoded(self) -> bytes:
        """What the seal covers."""
        return self.received


class _Sign1(_AsReceived, Sign1Message):
    """A COSE_Sign1 to be verified."""


class _Mac0(_AsReceived, Mac0Message):
    """A COSE_Mac0 to be verified."""


def sign1(parts: Parts, algorithm: object) -> Sign1Message:
    """A COSE_Sign1 that lacks nothing but the key; `algorithm` is pycose's class or one of that kind."""
    message = _Sign1(payload=parts.payload)
    message.received = parts.protected
    message.phdr[headers.Algorithm] = algorithm
    message.signature = parts.signature
    return message


def mac0(parts: Parts, algorithm: object) -> Mac0Message:
    """Likewise a COSE_Mac0."""
    message = _Mac0(payload=parts.payload)
    message.received = parts.protected
    message.phdr[headers.Algorithm] = algorithm
    return message
