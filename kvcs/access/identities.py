"""Who may do what through a relay, by the certificate that a client has shown (R2).

A file says which identities there are. TLS has checked that the certificate is one that is trusted and that the client
has its key; here it is only read whose it is.

    {"identities": [
        {"san": "engine-1.example", "scopes": ["6d1c6481cd428737da312c089db3832a"], "publish": true},
        {"fingerprint": "<SHA-256 of the certificate, hex>", "scopes": ["..."]}]}

`san` is a DNS name, a URI or an address of the certificate, compared as it is written there; `cn` the common name of
its subject. `subscribe` is true and `publish` false where they are not said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import NameOID

from kvcs import strictjson
from kvcs.errors import UsageError
from kvcs.keyfaults import CERTIFICATE_FAULTS
from kvcs.reading import read_up_to
from kvcs.scopes import Grant, misnamed, scope_of
from kvcs.strictjson import shown
from moqt import Query, Refusal
from moqt.auth import Policy, Recheck

MAX_OCTETS = 1 << 20
MAX_IDENTITIES = 10_000
MAX_NAMES = 100
KINDS = ("san", "cn", "fingerprint")
_MEMBERS = {*KINDS, "scopes", "publish", "subscribe"}

Name = tuple[str, str]
"""A kind, and the name of that kind."""


class IdentityPolicy:
    """Requests are allowed within the scopes that one of the client's names grants."""

    def __init__(self, grants: Mapping[Name, Iterable[Grant]]) -> None:
        self._grants = {name: tuple(given) for name, given in grants.items()}

    def replace(self, other: IdentityPolicy) -> None:
        """Takes what another one grants, for every request from now on. What runs goes on."""
        self._grants = other._grants

    def decide(self, query: Query) -> Refusal | None:
        """None where the certificate grants it; never says which scopes there are."""
        fault = misnamed(query)
        if fault is not None:
            return fault
        scope_id = scope_of(query.namespace)
        if query.certificate is None:
            return Refusal("no certificate was shown that grants this")
        for name in names_of(query.certificate):
            for grant in self._grants.get(name, ()):
                publishes = (query.of or query.action).publishes
                if grant.scope_id == scope_id and (grant.publish if publishes else grant.subscribe):
                    return None
        return Refusal("the certificate does not grant this")


class EitherPolicy:
    """What one of several policies grants is granted."""

    def __init__(self, *policies: Policy) -> None:
        self._policies = policies

    def decide(self, query: Query) -> Refusal | Recheck | None:
        """The first grant, one without an end before others; or the last refusal."""
        refusal: Refusal | None = None
        recheck: Recheck | None = None
        for policy in self._policies:
            decision = policy.decide(query)
            if decision is None:
                return None
            if isinstance(decision, Refusal):
                refusal = decision
            else:
                recheck = recheck or decision
        return recheck or refusal or Refusal("nothing grants this")


@lru_cache(maxsize=1024)
def names_of(certificate: bytes) -> tuple[Name, ...]:
    """The names of a certificate in DER, its fingerprint first."""
    names: list[Name] = [("fingerprint", sha256(certificate).hexdigest())]
    try:
        read = x509.load_der_x509_certificate(certificate)
        commons = read.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        names += [("cn", str(name.value)) for name in commons[:MAX_NAMES]]
        found = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names += [
            ("san", str(name.value))
            for name in found
            if isinstance(name, x509.DNSName | x509.UniformResourceIdentifier | x509.IPAddress)
        ][:MAX_NAMES]
    except CERTIFICATE_FAULTS:
        pass  # what cannot be read grants nothing
    return tuple(names)


def load_identities(path: Path) -> IdentityPolicy:
    """The policy in a file; raises UsageError."""
    try:
        data = read_up_to(path, MAX_OCTETS + 1)
    except OSError as fault:
        raise UsageError(f"client scopes: cannot read {path}: {fault.strerror}") from None
    try:
        return parse_identities(data)
    except UsageError as fault:
        raise UsageError(f"{path}: {fault}") from None


def parse_identities(data: bytes) -> IdentityPolicy:
    """The policy in JSON octets; raises UsageError for whatever is not as described, unknown members included."""
    what = "client scopes"
    document = strictjson.loads(data, what=what, max_octets=MAX_OCTETS, error=UsageError)
    entries = document.get("identities") if isinstance(document, dict) else None
    if not isinstance(entries, list) or not isinstance(document, dict) or len(document) != 1:
        raise UsageError(f'{what}: expected {{"identities": [...]}}, got {shown(document)}')
    if len(entries) > MAX_IDENTITIES:
        raise UsageError(f"{what}: at most {MAX_IDENTITIES} identities are accepted")
    grants: dict[Name, list[Grant]] = {}
    for number, entry in enumerate(entries):
        name, given = _entry(entry, f"{what}: identity {number}")
        grants.setdefault(name, []).extend(given)
    return IdentityPolicy(grants)


@dataclass(frozen=True, slots=True)
class _Flags:
    publish: bool
    subscribe: bool


def _entry(entry: object, what: str) -> tuple[Name, list[Grant]]:
    if not isinstance(entry, dict) or not entry.keys() <= _MEMBERS:
        raise UsageError(f"{what}: expected san, cn or fingerprint, scopes, publish, subscribe")
    named = [(kind, entry[kind]) for kind in KINDS if kind in entry]
    if len(named) != 1 or not isinstance(named[0][1], str) or not named[0][1]:
        raise UsageError(f"{what}: expected one of san, cn and fingerprint, a text")
    kind, name = named[0]
    if kind == "fingerprint":
        name = name.replace(":", "").lower()
        if _hex(name, 32) is None:
            raise UsageError(f"{what}: a fingerprint has 64 hex digits, got {shown(name)}")
    flags = _Flags(entry.get("publish", False), entry.get("subscribe", True))
    if type(flags.publish) is not bool or type(flags.subscribe) is not bool:
        raise UsageError(f"{what}: publish and subscribe are true or false")
    scopes = entry.get("scopes")
    if not isinstance(scopes, list) or not scopes:
        raise UsageError(f"{what}: expected scopes, a list of Scope IDs of 32 hex digits")
    return (kind, name), [_grant(scope, flags, what) for scope in scopes]


def _grant(scope: object, flags: _Flags, what: str) -> Grant:
    scope_id = _hex(scope, 16)
    if scope_id is None:
        raise UsageError(f"{what}: a Scope ID has 32 hex digits, got {shown(scope)}")
    return Grant(scope_id, flags.publish, flags.subscribe)


def _hex(text: object, octets: int) -> bytes | None:
    if not isinstance(text, str) or len(text) != 2 * octets:
        return None
    try:
        return bytes.fromhex(text)
    except ValueError:
        return None
