"""Every error of the package; each says which exit status the command line ends with, and the report's word for it.

KvcsError                  1  anything else
├── UsageError             2  a file, flag, key or token list that cannot be used
├── PublicationNotFound    3  nobody publishes the prefix
├── Incomplete             4  the deadline passed, the publication vanished, objects are missing
├── Unauthorised           5  the peer refused access
│   └── TokenError            an authorisation token that cannot be used
├── Conflict               5  signature, key or digest contradict what was received
│   ├── DigestConflict        a manifest lists another digest than the Object received
│   ├── ManifestError         a manifest that contradicts itself, its predecessor or the namespace
│   ├── SignatureError        a manifest that no trusted producer signed
│   └── ProtectionError       a publication that is not encrypted, or with no key of the key ring
├── PeerUnsuitable         1  the peer cannot carry KVCS
├── KeyExhausted           2  a key of the key ring has been used as much as it safely can
├── SourceChanged          1  a source file changed while it was published
├── PublicationStopped     1  the publication was stopped and takes nothing more (G7)
└── DuplicatePayload       1  a second, different payload for one Location (P5)

Messages are one line: what was expected, what came, what to do.
"""

from __future__ import annotations

from typing import ClassVar


class KvcsError(Exception):
    """Base of everything this package raises on purpose."""

    exit_status: ClassVar[int] = 1
    """Exit status of the command line."""
    status: ClassVar[str] = "error"
    """What a report says of a retrieval that ended with it."""


class UsageError(KvcsError):
    """A file, flag, key or token list cannot be used as it is."""

    exit_status = 2


class PublicationNotFound(KvcsError):
    """Nobody publishes the prefix, or a shorter one."""

    exit_status = 3
    status = "not_found"


class Incomplete(KvcsError):
    """The retrieval ended before everything had been received and verified."""

    exit_status = 4
    status = "incomplete"


class Unauthorised(KvcsError):
    """The peer refused access to the scope."""

    exit_status = 5
    status = "unauthorised"


class TokenError(Unauthorised):
    """An authorisation token cannot be used; the text quotes nothing of it."""


class Conflict(KvcsError):
    """What was received contradicts a signature, a key or a digest."""

    exit_status = 5
    status = "conflict"


class DigestConflict(Conflict):
    """A manifest lists another digest than that of the Object received (M9)."""


class ManifestError(Conflict):
    """A manifest contradicts itself, its predecessor or the namespace; the publication is discarded."""


class SignatureError(Conflict):
    """A manifest is not signed by a producer that is trusted; the publication is discarded (M9)."""


class ProtectionError(Conflict):
    """A publication is not encrypted, or not with a key that the key ring has (X3)."""


class KeyExhausted(KvcsError):
    """A key has protected as much as is safe: another is needed, or a new publication."""

    exit_status = 2


class PeerUnsuitable(KvcsError):
    """The peer speaks MOQT but cannot carry KVCS; use another."""


class SourceChanged(KvcsError):
    """A source file was truncated or changed while it was published."""


class PublicationStopped(KvcsError):
    """The publication was stopped; start a new one, with a new Publication ID (G7)."""


class DuplicatePayload(KvcsError):
    """A second, different payload was given for one Location (P5)."""
