"""COSE structures of four parts (RFC 9052): COSE_Sign1 and COSE_Mac0, and what their headers must say.

Octets are taken apart here, strictly and without cryptography. Nobody's seal is checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvcs import strictcbor
from kvcs.errors import KvcsError
from kvcs.strictjson import shown

MAX_KEY_ID = 64

_ALGORITHM, _CRITICAL, _KEY_ID = 1, 2, 4
MAX_WRAPPING = 4096
"""Headers and seal beside the payload; real ones take under 200 octets."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What one use of COSE demands, and how its errors read."""

    what: str
    """What it is part of; begins every message."""
    shape: str
    """What it should be, such as "a COSE_Sign1"."""
    seal: str
    """Its fourth part: the signature, or the tag."""
    tags: tuple[int, ...]
    algorithms: Mapping[int, tuple[str, int]]
    """Those that are taken, by their numbers: name, and size of the seal in octets."""
    max_octets: int
    error: type[KvcsError]
    end: str = ""
    """Ends every message."""

    def loads(self, data: bytes, max_octets: int, tags: tuple[int, ...] = ()) -> object:
        """One CBOR item, strictly."""
        what = f"{self.what}: not {self.shape}"
        return strictcbor.loads(
            data, what=what, max_octets=max_octets, error=self.error, tags=tags, end=self.end
        )

    def misshapen(self, text: str) -> KvcsError:
        """It is something else."""
        return self.error(f"{self.what}: not {self.shape}: {text}{self.end}")

    def refused(self, text: str) -> KvcsError:
        """Its shape is right, what it says is not."""
        return self.error(f"{self.what}: {text}{self.end}")


@dataclass(frozen=True, slots=True)
class Parts:
    """The four parts of a COSE_Sign1 or COSE_Mac0."""

    protected: bytes
    """As received: the seal covers these very octets."""
    unprotected: Mapping[object, object]
    payload: bytes
    signature: bytes


def parts_of(data: bytes, rules: Rules) -> Parts:
    """The parts, tagged or not; raises `rules.error` for any other shape.

    Nothing is checked of the headers or the seal.
    """
    item = rules.loads(data, rules.max_octets + MAX_WRAPPING, rules.tags)
    item = getattr(item, "value", item)
    if not isinstance(item, list | tuple) or len(item) != 4:
        raise rules.misshapen("expected an array of four")
    protected, unprotected, payload, signature = item
    if not isinstance(unprotected, Mapping):
        raise rules.misshapen("expected a map as unprotected header")
    if not all(isinstance(part, bytes) for part in (protected, payload, signature)):
        raise rules.misshapen(f"expected octets as protected header, payload and {rules.seal}")
    return Parts(protected, unprotected, payload, signature)


def algorithm_and_key_id(message: Parts, rules: Rules) -> tuple[int, bytes]:
    """What the headers say; raises `rules.error` where they break a rule.

    The algorithm must be protected, the key identifier may be in either header but not in both, and no header
    may be critical: none is known here that could be.
    """
    protected = rules.loads(message.protected, MAX_WRAPPING) if message.protected else {}
    unprotected = message.unprotected
    if not isinstance(protected, Mapping):
        raise rules.refused("expected a map as protected header")
    if not all(isinstance(label, int | str) for label in (*protected, *unprotected)):
        raise rules.refused("a header's label is neither a number nor text")
    if _CRITICAL in protected or _CRITICAL in unprotected:
        raise rules.refused("it has critical headers, of which none is known here")
    if both := set(protected) & set(unprotected):
        raise rules.refused(f"header {shown(min(both, key=str))} is both protected and unprotected")
    algorithm = protected.get(_ALGORITHM)
    if algorithm is None:
        raise rules.refused("its protected header names no algorithm")
    if type(algorithm) is not int or algorithm not in rules.algorithms:
        taken = " or ".join(f"{name} ({n})" for n, (name, _) in rules.algorithms.items())
        raise rules.refused(f"its algorithm must be {taken}, it is {shown(algorithm)}")
    key_id = protected.get(_KEY_ID, unprotected.get(_KEY_ID))
    if not isinstance(key_id, bytes) or not 1 <= len(key_id) <= MAX_KEY_ID:
        raise rules.refused(f"its key identifier (kid) must be 1 to {MAX_KEY_ID} octets")
    size = rules.algorithms[algorithm][1]
    if len(message.signature) != size:
        raise rules.refused(
            f"its {rules.seal} must have {size} octets, it has {len(message.signature)}"
        )
    return algorithm, key_id
