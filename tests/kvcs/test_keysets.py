"""kvcs.keysets: JWK and COSE_Key, member by member."""

from __future__ import annotations

import base64
import json
from typing import Any

import cbor2
import pytest
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ed25519
from hypothesis import given
from hypothesis import strategies as st

from kvcs.errors import UsageError
from kvcs.keysets import Members, cose_keys, is_private, jwk_keys, private_of, public_of
from tests.support.keys import COSE, PRODUCERS

NAMES = ["es256", "ed25519"]
LIMIT = 1 << 20
ZERO = "A" * 43


def jwk(name: str = "es256", **changes: Any) -> dict[str, Any]:
    """The public JWK of the vectors with `changes`; None takes a member away."""
    members = COSE["keys"][name]["jwk"] | changes
    return {name: value for name, value in members.items() if value is not None}


def private_jwk(name: str = "es256", **changes: Any) -> dict[str, Any]:
    return jwk(name, d=COSE["keys"][name]["jwk_private_d"], **changes)


def cose(name: str, form: str = "private", **changes: Any) -> dict[int, Any]:
    """The COSE_Key of the vectors; `changes` are by the names of JWK, None takes a member away."""
    labels = {"kty": 1, "kid": 2, "alg": 3, "key_ops": 4, "crv": -1, "x": -2, "y": -3, "d": -4}
    key = cbor2.loads(bytes.fromhex(COSE["keys"][name][f"cose_key_{form}"]))
    key |= {labels[label]: value for label, value in changes.items()}
    return {label: value for label, value in key.items() if value is not None}


def one_jwk(key: object) -> Members:
    ((found,), single) = jwk_keys(json.dumps(key).encode(), LIMIT)
    assert single
    return found


def one_cose(key: object) -> Members:
    ((found,), single) = cose_keys(cbor2.dumps(key), LIMIT)
    assert single
    return found


@pytest.mark.parametrize("name", NAMES)
def test_both_forms_give_the_same_keys(name: str) -> None:
    """M8: kid of a JWK is the UTF-8 of its text."""
    key = PRODUCERS[name]
    assert public_of(one_jwk(jwk(name)), None, skip=False) == key.public
    assert public_of(one_cose(cose(name, "public")), None, skip=False) == key.public
    for found in (one_jwk(private_jwk(name)), one_cose(cose(name))):
        assert is_private(found)
        assert private_of(found, b"ignored").public == key.public
    assert not is_private(one_jwk(jwk(name)))
    assert not is_private(one_cose(cose(name, "public")))
    assert one_jwk(jwk(name, kid="prod-ä"))["kid"] == "prod-ä".encode()


@pytest.mark.parametrize("name", NAMES)
def test_members_that_may_lack(name: str) -> None:
    """M8: an identifier is given or made up; x and y follow from d."""
    key = PRODUCERS[name]
    bare = public_of(one_jwk(jwk(name, kid=None, alg=None)), None, skip=False)
    assert bare is not None
    assert bare.key == key.public.key
    assert len(bare.key_id) == 8
    named = public_of(one_jwk(jwk(name, kid=None)), b"n", skip=False)
    assert named is not None
    assert named.key_id == b"n"
    assert private_of(one_jwk(private_jwk(name, x=None, y=None)), None).public == key.public
    assert private_of(one_cose(cose(name, x=None, y=None)), None).public == key.public


def test_other_ways_to_say_it() -> None:
    """M8: compressed points, Ed25519 as the name of its algorithm, operations that are allowed."""
    key = PRODUCERS["es256"].public
    odd = bool(bytes.fromhex(COSE["keys"]["es256"]["y"])[-1] & 1)
    assert public_of(one_cose(cose("es256", "public", y=odd)), None, skip=False) == key
    assert public_of(one_cose(cose("es256", "public", y=not odd)), None, skip=False) != key
    for changes in (
        {"use": "sig"},
        {"key_ops": ["verify", "sign"]},
        {"x5t": [1.5], "ext": True},
    ):
        assert public_of(one_jwk(jwk(**changes)), None, skip=False) == key
    assert public_of(one_jwk(jwk("ed25519", alg="Ed25519")), None, skip=False)
    assert public_of(one_cose(cose("es256", "public", key_ops=[2])), None, skip=False) == key
    assert private_of(one_cose(cose("es256", key_ops=[1, 2])), None)


WRONG_PUBLIC: list[tuple[dict[str, Any], str]] = [
    ({"kty": "RSA"}, "expected a P-256 key"),
    ({"kty": ["EC"]}, "expected a P-256 key"),
    ({"kty": None}, "expected a P-256 key"),
    ({"crv": "P-384"}, "expected a P-256 key"),
    ({"crv": "Ed25519"}, "expected a P-256 key"),
    ({"alg": "ES384"}, "a P-256 key is not for algorithm 'ES384'"),
    ({"alg": "EdDSA"}, "not for algorithm"),
    ({"alg": ["ES256"]}, "not for algorithm list"),
    ({"use": "enc"}, "for use 'enc'"),
    ({"key_ops": ["sign"]}, "do not allow to verify"),
    ({"key_ops": "verify"}, "do not allow to verify"),
    ({"x": ZERO}, "no point"),
    ({"x": None}, "x must have 32 octets"),
    ({"y": None}, "y must have 32 octets"),
    ({"y": "AAAA"}, "y must have 32 octets"),
    ({"kid": ""}, "1 to 64 octets"),
    ({"kid": "x" * 65}, "1 to 64 octets"),
]


@pytest.mark.parametrize(("changes", "fault"), WRONG_PUBLIC)
def test_public_keys_that_cannot_be_used(changes: dict[str, Any], fault: str) -> None:
    """M8: each member that is there must allow it."""
    key = one_jwk(jwk(**changes))
    with pytest.raises(UsageError, match=fault):
        public_of(key, None, skip=False)


@pytest.mark.parametrize(
    ("changes", "skipped"),
    [({"kty": "RSA"}, True), ({"use": "enc"}, True), ({"x": ZERO}, False), ({"kid": ""}, False)],
)
def test_other_kinds_in_a_set(changes: dict[str, Any], skipped: bool) -> None:
    """M8: passed over; a key of the right kind that is broken is not."""
    key = one_jwk(jwk(**changes))
    if skipped:
        assert public_of(key, None, skip=True) is None
    else:
        with pytest.raises(UsageError):
            public_of(key, None, skip=True)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"d": ZERO}, "not the number of a private key"),
        ({"d": base64.urlsafe_b64encode(b"\xff" * 32).decode().rstrip("=")}, "not the number"),
        ({"d": "AAAA"}, "d must have 32 octets"),
        ({"key_ops": ["verify"]}, "do not allow to sign"),
        ({"kty": "oct"}, "expected a P-256 key"),
        ({"y": ZERO}, "no point"),
        ({"x": jwk("ed25519")["x"]}, "no point|another key"),
    ],
)
def test_private_keys_that_cannot_be_used(changes: dict[str, Any], fault: str) -> None:
    """M8: the public half must be its own."""
    with pytest.raises(UsageError, match=fault):
        private_of(one_jwk(private_jwk() | changes), None)
    ed = private_jwk("ed25519", x=ZERO)
    with pytest.raises(UsageError, match="another key"):
        private_of(one_jwk(ed), None)


@pytest.mark.parametrize(
    "key",
    [
        {"kty": "oct", "k": "AAAA"},
        {"kty": "RSA", "d": "AAAA"},
        {"kty": "oct"},
        {"kty": "?", "k": 1},
    ],
)
def test_private_keys_of_any_kind_are_known(key: dict[str, Any]) -> None:
    """M8: so that none is given away as a public one."""
    assert is_private(one_jwk(key))
    assert is_private(one_cose({1: 4, -1: b"secret"}))
    assert is_private(one_cose({1: 2, -1: 2, -4: bytes(48)}))


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        (b"[]", "expected an object"),
        (b"{", "not JSON"),
        (b'{"kty":"EC","kty":"EC"}', "a name occurs twice"),
        (b'{"keys":{}}', "array of objects"),
        (b'{"keys":[1]}', "array of objects"),
        (b'{"kty":"EC","kid":1}', "kid must be text"),
        (b'{"kty":"EC","x":1}', "x must be base64url"),
        (b'{"kty":"EC","x":"AA=="}', "x must be base64url"),
        (b'{"kty":"EC","x":"AB"}', "x must be base64url"),
        (b'{"kty":"EC","x":"A+/A"}', "x must be base64url"),
        (b'{"kty":"EC","x":"A A"}', "x must be base64url"),
        ('{"kty":"OKP","d":"Aä"}'.encode(), "d must be base64url"),
    ],
)
def test_documents_that_are_no_jwk(document: bytes, fault: str) -> None:
    """M8: strict JSON, strict base64url."""
    with pytest.raises(UsageError, match=fault):
        jwk_keys(document, LIMIT)


@pytest.mark.parametrize(
    ("key", "fault"),
    [
        (b"\x01", "expected a map"),
        (b"\x82\xa0\x01", "expected a map"),
        (b"\xa2\x01\x02\x01\x02", "neither PEM, JWK nor COSE_Key"),
        (b"\xa0\x00", "neither PEM, JWK nor COSE_Key"),
        (b"\xd2\xa0", "neither PEM, JWK nor COSE_Key"),
        (b"ssh-ed25519 AAAA", "neither PEM, JWK nor COSE_Key"),
    ],
)
def test_documents_that_are_no_cose_key(key: bytes, fault: str) -> None:
    """M8: strict CBOR, without equal labels."""
    with pytest.raises(UsageError, match=fault):
        cose_keys(key, LIMIT)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"kty": "EC2"}, "expected a P-256 key"),
        ({"kty": True}, "expected a P-256 key"),
        ({"crv": 2}, "expected a P-256 key"),
        ({"alg": -9}, "not for algorithm -9"),
        ({"alg": -8}, "not for algorithm 'EdDSA'"),
        ({"key_ops": [1]}, "do not allow to verify"),
        ({"kid": "text"}, "kid must be octets"),
        ({"x": "x" * 32}, "x must have 32 octets"),
    ],
)
def test_cose_keys_that_cannot_be_used(changes: dict[str, Any], fault: str) -> None:
    """M8: labels of text are not those of numbers."""
    with pytest.raises(UsageError, match=fault):
        public_of(one_cose(cose("es256", "public", **changes)), None, skip=False)
    spoofed = cose("es256", "public", kty=None) | {"kty": "EC"}
    with pytest.raises(UsageError, match="expected a P-256 key"):
        public_of(one_cose(spoofed), None, skip=False)


VALUES = st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3) | st.just(ZERO)
MEMBERS = st.sampled_from(["kty", "crv", "x", "y", "d", "kid", "alg", "use", "key_ops", "keys"])


@given(st.dictionaries(MEMBERS, VALUES | st.lists(VALUES, max_size=2), max_size=4))
def test_any_other_members(changes: dict[str, Any]) -> None:
    """M8: nothing but our own error comes out."""
    try:
        for key in jwk_keys(json.dumps(private_jwk() | changes).encode(), LIMIT)[0]:
            public_of(key, None, skip=False)
            private_of(key, None)
    except UsageError:
        pass


@given(st.dictionaries(st.integers(-5, 5), VALUES | st.binary(max_size=33), max_size=4))
def test_any_other_labels(changes: dict[int, Any]) -> None:
    """M8: likewise."""
    try:
        for key in cose_keys(cbor2.dumps(cose("ed25519") | changes), LIMIT)[0]:
            public_of(key, None, skip=False)
            private_of(key, None)
    except UsageError:
        pass


def test_a_kind_of_key_that_openssl_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """M8: Ed25519, where OpenSSL is built to keep to FIPS; `cryptography` tells so at every use."""

    def lacking(_: bytes) -> None:
        raise UnsupportedAlgorithm("ed25519 is not supported by this version of OpenSSL.")

    monkeypatch.setattr(ed25519.Ed25519PrivateKey, "from_private_bytes", lacking)
    monkeypatch.setattr(ed25519.Ed25519PublicKey, "from_public_bytes", lacking)
    with pytest.raises(UsageError, match="d is not the number of a private key"):
        private_of(one_jwk(private_jwk("ed25519")), None)
    with pytest.raises(UsageError, match="no point of the curve"):
        public_of(one_jwk(jwk("ed25519")), None, skip=False)
