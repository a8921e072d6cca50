"""moqt.auth.claims: what a token says, and that nothing it says is passed over."""

from __future__ import annotations

import json
from math import inf, nan
from pathlib import Path
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moqt.auth import Claims, claim_map, claims_of
from moqt.auth.claims import MAX_TIME, RESTRICTIVE
from moqt.errors import TokenFault

"""For a machine that has other things to do."""

C4M = json.loads((Path(__file__).parents[2] / "vectors" / "c4m-vectors.json").read_text("utf-8"))
ENCODED = {
    vector["id"]: cbor2.loads(bytes.fromhex("".join(vector["payload_cbor_hex"].split())))
    for group in C4M.values()
    if isinstance(group, list)
    for vector in group
    if "payload_cbor_hex" in vector
}
UNDERSTOOD = {
    "cbor_issuer_only",
    "cbor_core_claims",
    "token_hmac_minimal",
    "token_es256",
    "moqt_publisher_exact",
    "moqt_subscriber_prefix",
    "moqt_multi_scope",
    "moqt_admin_wildcard",
    "moqt_suffix_match",
}
"""The rest carry claims that are not implemented here."""


@pytest.mark.parametrize("name", ENCODED)
def test_the_vectors_of_the_draft(name: str) -> None:
    """R2: claims that may restrict a token and are not known here make it useless."""
    document = ENCODED[name]
    if name not in UNDERSTOOD:
        with pytest.raises(TokenFault, match="not known here"):
            claims_of(document)
        return
    claims = claims_of(document)
    assert claims.issuer == document.get(1)
    assert list(claims.audience) == document.get(3, [])
    assert (claims.expires, claims.not_before) == (document.get(4), document.get(5))
    assert len(claims.scopes) == len(document.get(327, []))


def test_all_vectors_are_read() -> None:
    assert ENCODED.keys() > UNDERSTOOD
    assert len(ENCODED) == 18


def test_every_claim_that_is_known() -> None:
    document = {
        1: "iss",
        2: "sub",
        3: "aud",
        4: 9.5,
        5: 1,
        6: 2,
        7: b"id",
        310: "CAT-v1",
        327: [[[4]]],
        328: 300.0,
    }
    claims = claims_of(document)
    assert (claims.issuer, claims.subject, claims.audience) == ("iss", "sub", ("aud",))
    assert (claims.expires, claims.not_before, claims.issued_at) == (9.5, 1, 2)
    assert (claims.token_id, claims.revalidate, len(claims.scopes)) == (b"id", 300, 1)
    assert claims_of({}) == Claims()
    written = claim_map(claims, [[[4]]])
    assert claims_of(cbor2.loads(cbor2.dumps(written))) == claims


def test_no_revalidation_is_asked_for_by_zero() -> None:
    assert claims_of({328: 0}).revalidate is None
    assert claims_of({328: 0.5}).revalidate == 0.5


@pytest.mark.parametrize("label", [*RESTRICTIVE, 0, -1, 99, 329, 1 << 40, "iss", "x", b"x"])
def test_other_claims_are_refused(label: object) -> None:
    """One that is not known cannot be known not to restrict."""
    with pytest.raises(TokenFault, match="not known here") as refused:
        claims_of({1: "iss", label: 1})
    if label in RESTRICTIVE:
        assert RESTRICTIVE[label] in str(refused.value)


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        b"",
        {1: 1},
        {1: ""},
        {1: b"iss"},
        {1: "x" * 1025},
        {2: None},
        {3: []},
        {3: [1]},
        {3: ["a"] * 33},
        {3: b"a"},
        {4: "1"},
        {4: True},
        {4: -1},
        {4: nan},
        {4: inf},
        {4: MAX_TIME + 1},
        {5: None},
        {6: []},
        {7: "id"},
        {7: b""},
        {7: bytes(65)},
        {310: 2},
        {310: "CAT-v2"},
        {310: [1]},
        {327: []},
        {328: -1},
        {328: inf},
        {328: "1"},
    ],
)
def test_malformed_claims_are_refused(document: object) -> None:
    with pytest.raises(TokenFault):
        claims_of(document)


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.binary() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.integers(), inner, max_size=2),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from([*range(1, 9), 310, 327, 328]) | st.text(max_size=3), VALUES, max_size=4
    )
)
def test_any_map_is_read_or_refused(document: dict[object, object]) -> None:
    try:
        claims_of(document)
    except TokenFault:
        pass
