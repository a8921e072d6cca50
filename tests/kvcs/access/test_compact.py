"""kvcs.access.compact: the form of the C4M draft's examples, with all of its vectors."""

from __future__ import annotations

import base64
from typing import Any

import cbor2
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from kvcs.access.compact import is_compact, open_compact
from kvcs.access.keys import KeyRing, SharedKey
from kvcs.access.policy import TokenReader
from kvcs.producer_keys import public_key
from moqt import Token
from moqt.auth import Terms, claims_of
from moqt.errors import RequestErrorCode, TokenFault, UntrustedToken
from tests.support.tokens import C4M, KVCS, SHARED


def ec_key() -> Any:
    numbers = C4M["Keys"]
    x, y = (int(numbers[f"es256_public_key_{part}"], 16) for part in "xy")
    return public_key(ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key(), b"es")


RING = KeyRing([SHARED, ec_key()])
TOKENS = {
    vector["id"]: vector
    for group in C4M.values()
    if isinstance(group, list)
    for vector in group
    if "token" in vector
}
RESTRICTED = {
    "token_hmac_full",
    "dpop_jwk_binding",
    "dpop_no_jti",
    "dpop_es256_real_binding",
}
"""With claims that are not implemented."""
TAMPERED = {"invalid_tampered_signature"}


@pytest.mark.parametrize("name", TOKENS.keys() - TAMPERED - RESTRICTED)
def test_the_seals_of_the_draft(name: str) -> None:
    """R2: signature and claims of every token whose claims are known here."""
    token = TOKENS[name]["token"].encode("ascii")
    claims = open_compact(token, RING)
    part = token.split(b".")[1]
    document = cbor2.loads(base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4)))
    assert claims == claims_of(document)


@pytest.mark.parametrize("name", sorted(RESTRICTED))
def test_tokens_with_restrictions_that_are_not_known_are_refused(name: str) -> None:
    with pytest.raises(TokenFault, match="may restrict it"):
        open_compact(TOKENS[name]["token"].encode("ascii"), RING)


def test_all_tokens_of_the_draft_are_there() -> None:
    assert len(TOKENS) == 19


@pytest.mark.parametrize("vector", C4M["Token Validation"], ids=lambda vector: vector["id"])
def test_the_validation_cases_of_the_draft(vector: Any) -> None:
    """R2: time, issuer, audience, signature, key and algorithm."""
    asked = vector["validation"]
    terms = Terms(
        issuers=frozenset(asked.get("expected_issuers", [])),
        audiences=frozenset(asked.get("expected_audiences", [])),
        leeway=0,
    )
    token = vector["token"].encode("ascii")
    expected = asked.get("expected_error")
    ring = RING
    if expected == "AlgorithmMismatch":
        ring = KeyRing([ec_key()])
    elif "wrong_key_hex" in asked:
        ring = KeyRing([SharedKey(bytes.fromhex(asked["wrong_key_hex"]), b"k1")])
    if expected in {"SignatureVerificationFailed", "AlgorithmMismatch"}:
        with pytest.raises(UntrustedToken):
            open_compact(token, ring)
        return
    fault = terms.fault(open_compact(token, ring), asked["reference_time"])
    reasons = {
        None: None,
        "TokenExpired": "it has expired (exp)",
        "TokenNotYetValid": "it is not valid yet (nbf)",
        "InvalidIssuer": "its issuer (iss) is not trusted here",
        "InvalidAudience": "it is meant for others (aud)",
    }
    assert (fault and fault.reason) == reasons[expected]
    if expected == "TokenExpired":
        assert fault is not None
        assert fault.code is RequestErrorCode.EXPIRED_AUTH_TOKEN


@pytest.mark.parametrize("vector", KVCS["tokens"], ids=lambda vector: vector["name"])
def test_it_is_taken_behind_its_option_only(vector: Any) -> None:
    token = Token(1, vector["compact_c4m_vector_form"].encode("ascii"))
    plain = Token(1, bytes.fromhex(vector["cwt_mac0_tag61"]))
    with pytest.raises(TokenFault, match="compact form is not taken"):
        TokenReader(KeyRing([SHARED]))(token)
    reader = TokenReader(KeyRing([SHARED]), compact=True)
    assert reader(token) == reader(plain)


def test_every_truncation_is_refused() -> None:
    token = KVCS["tokens"][0]["compact_c4m_vector_form"].encode("ascii")
    assert open_compact(token, RING).token_id == b"tok-1"
    for length in range(len(token)):
        with pytest.raises(TokenFault):
            open_compact(token[:length], RING)
        changed = token[:length] + b"!" + token[length + 1 :]
        with pytest.raises(TokenFault):
            open_compact(changed, RING)


def encoded(header: Any) -> bytes:
    part = base64.urlsafe_b64encode(cbor2.dumps(header)).rstrip(b"=")
    return part + b".oA.AA"


@pytest.mark.parametrize(
    "token",
    [
        encoded({1: 5, 16: "CAT"}),
        encoded({1: -8, 16: "CAT"}),
        encoded({1: "x", 16: "CAT"}),
        encoded({1: {}, 16: "CAT"}),
        encoded({1: [-4], 16: {}}),
        encoded({1: -4, 16: "JWT"}),
        encoded({1: -4}),
        encoded({1: -4, 16: "CAT", 2: [9]}),
        encoded({1: -4, 16: "CAT", 4: "k1"}),
        encoded([1]),
        b"oA.oA",
        b"oA.oA.oA.oA",
        b"oB.oA.AA",
    ],
)
def test_other_headers_are_refused(token: bytes) -> None:
    with pytest.raises(TokenFault):
        open_compact(token, RING)


def test_without_a_name_the_key_must_be_the_only_one() -> None:
    """Keys are never tried in turn."""
    two = KeyRing([SHARED, SharedKey(b"x" * 32, b"k2")])
    with pytest.raises(UntrustedToken, match="which of the keys"):
        open_compact(TOKENS["token_hmac_minimal"]["token"].encode("ascii"), two)
    assert is_compact(b"a.b.c")
    assert not is_compact(b"a.b")
    assert not is_compact(b"\xd1.a.b")
