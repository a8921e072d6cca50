"""kvcs.access.identities: from certificates to scopes."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtensionOID, NameOID

from kvcs.access.identities import (
    EitherPolicy,
    load_identities,
    names_of,
    parse_identities,
)
from kvcs.errors import UsageError
from kvcs.naming import PROTOCOL
from moqt import Query, Refusal
from moqt.auth import Action, Recheck
from tests.support.keys import odd_certificate

SCOPE, OTHER = bytes(range(16)), bytes(16)


@pytest.fixture
def client(certificates: Path) -> bytes:
    """DER of the test client's certificate."""
    pem = (certificates / "client.pem").read_bytes()
    return x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)


def file(**entry: object) -> bytes:
    return json.dumps({"identities": [{"scopes": [SCOPE.hex()]} | entry]}).encode()


def query(
    certificate: bytes | None,
    scope: bytes = SCOPE,
    action: Action = Action.SUBSCRIBE,
    of: Action | None = None,
) -> Query:
    return Query(
        action=action,
        namespace=(PROTOCOL, scope, b"x", b"y", b"z"),
        track=b"k",
        tokens=(),
        of=of,
        certificate=certificate,
    )


def test_the_names_of_a_certificate(client: bytes) -> None:
    names = names_of(client)
    assert ("cn", "KVCS client") in names
    assert ("san", "client") in names
    assert names[0][0] == "fingerprint"
    assert [kind for kind, _ in names_of(b"no certificate")] == ["fingerprint"]


@pytest.mark.parametrize("kind", ["san", "cn", "fingerprint"])
def test_each_kind_of_name_grants(kind: str, client: bytes) -> None:
    """R2: within the scope and no further, to read but not to publish unless that is said."""
    name = dict(reversed(names_of(client)))[kind]
    policy = parse_identities(file(**{kind: name}))
    assert policy.decide(query(client)) is None
    assert policy.decide(query(client, action=Action.FETCH)) is None
    for refused in (
        query(client, OTHER),
        query(None),
        query(b"another certificate"),
        query(client, action=Action.PUBLISH_NAMESPACE),
        query(client, action=Action.REQUEST_UPDATE, of=Action.PUBLISH),
        Query(action=Action.SUBSCRIBE_NAMESPACE, namespace=(PROTOCOL,), track=None, tokens=()),
    ):
        assert isinstance(policy.decide(refused), Refusal)
    publisher = parse_identities(file(**{kind: name, "publish": True, "subscribe": False}))
    assert publisher.decide(query(client, action=Action.PUBLISH_NAMESPACE)) is None
    assert isinstance(publisher.decide(query(client)), Refusal)


def test_nobody_takes_over_the_publications_of_others(client: bytes) -> None:
    """R2: who may publish offers whole namespaces only, as with tokens."""
    policy = parse_identities(file(cn="KVCS client", publish=True))
    for action in (Action.PUBLISH_NAMESPACE, Action.PUBLISH):
        whole = query(client, action=action)
        assert policy.decide(whole) is None
        assert isinstance(policy.decide(replace(whole, namespace=whole.namespace[:4])), Refusal)


def test_what_is_replaced_counts_at_once(client: bytes) -> None:
    policy = parse_identities(file(cn="KVCS client"))
    assert policy.decide(query(client)) is None
    policy.replace(parse_identities(file(cn="another client")))
    assert isinstance(policy.decide(query(client)), Refusal)


def test_names_that_cannot_be_read_grant_nothing() -> None:
    """R2: such as an x400Address; a peer may show any certificate that its CA has signed."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "odd")])
    other = x509.UnrecognizedExtension(
        ExtensionOID.SUBJECT_ALTERNATIVE_NAME, bytes.fromhex("3002a300")
    )
    now = datetime(2026, 1, 1, tzinfo=UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(1))
    made = builder.add_extension(other, critical=False).sign(key, SHA256())
    names = names_of(made.public_bytes(Encoding.DER))
    assert [kind for kind, _ in names] == ["fingerprint", "cn"]


@pytest.mark.parametrize("kind", ["version", "name"])
def test_certificates_that_cannot_be_read_grant_nothing(kind: str, certificates: Path) -> None:
    """R2: `cryptography` has an exception of its own for each, some only once it is asked for a name."""
    odd = odd_certificate(certificates / "ca.pem", kind)
    assert [kind for kind, _ in names_of(odd)] == ["fingerprint"]


def test_a_fingerprint_as_tools_print_it(client: bytes) -> None:
    digest = names_of(client)[0][1].upper()
    colons = ":".join(digest[at : at + 2] for at in range(0, 64, 2))
    assert parse_identities(file(fingerprint=colons)).decide(query(client)) is None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b'{"identities": {}}',
        b'{"identities": [], "more": 1}',
        b'{"identities": [1]}',
        file(),
        file(san=""),
        file(san=1),
        file(san="a", cn="b"),
        file(fingerprint="00"),
        file(san="a", scopes=[]),
        file(san="a", scopes=["zz"]),
        file(san="a", scopes=[1]),
        file(san="a", publish=1),
        file(san="a", subscribe="yes"),
        file(san="a", admin=True),
    ],
)
def test_what_is_not_as_described_is_refused(text: bytes) -> None:
    with pytest.raises(UsageError, match="client scopes"):
        parse_identities(text)


def test_files(tmp_path: Path, client: bytes) -> None:
    path = tmp_path / "clients.json"
    with pytest.raises(UsageError, match="cannot read"):
        load_identities(path)
    path.write_bytes(b"{")
    with pytest.raises(UsageError, match=r"clients\.json"):
        load_identities(path)
    path.write_bytes(file(san="client"))
    assert load_identities(path).decide(query(client)) is None


class Fixed:
    """A policy with one answer."""

    def __init__(self, answer: Refusal | Recheck | None) -> None:
        self.answer = answer

    def decide(self, query: Query) -> Refusal | Recheck | None:
        return self.answer


def test_either_of_two_policies_grants() -> None:
    """What has no end goes before what is to be looked at again."""
    refusal, recheck = Refusal("no"), Recheck(5)
    asked = query(None)
    assert EitherPolicy(Fixed(refusal), Fixed(None)).decide(asked) is None
    assert EitherPolicy(Fixed(recheck), Fixed(None)).decide(asked) is None
    assert EitherPolicy(Fixed(recheck), Fixed(refusal)).decide(asked) is recheck
    assert EitherPolicy(Fixed(refusal), Fixed(refusal)).decide(asked) is refusal
    assert isinstance(EitherPolicy().decide(asked), Refusal)
