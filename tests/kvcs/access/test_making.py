"""kvcs.access.making: tokens from what people say."""

from __future__ import annotations

import pytest

from kvcs.access.cwt import open_token
from kvcs.access.keys import KeyRing
from kvcs.access.making import ALLOW, make, scopes_claim
from kvcs.errors import UsageError
from moqt.auth import Claims
from tests.support.tokens import KVCS, SCOPE, SHARED


@pytest.mark.parametrize(
    ("name", "allow"), [("publisher", ("publish",)), ("subscriber", ("subscribe", "fetch"))]
)
def test_they_grant_what_the_vectors_grant(name: str, allow: tuple[str, ...]) -> None:
    """R2: the same actions on the same names."""
    vector = next(one for one in KVCS["tokens"] if one["name"] == name)
    wanted = open_token(bytes.fromhex(vector["cwt_mac0_tag61"]), KeyRing([SHARED])).scopes
    token, token_id = make(SHARED, [SCOPE], allow, Claims(token_id=b"tok-1"))
    claims = open_token(token, KeyRing([SHARED]))
    assert token_id == claims.token_id == b"tok-1"
    assert claims.scopes == wanted


def test_each_token_has_an_identifier_of_its_own() -> None:
    ids = {make(SHARED, [SCOPE], ["fetch"], Claims())[1] for _ in range(9)}
    assert len(ids) == 9


def test_a_scope_is_listed_once() -> None:
    other = b"o" * 16
    listed = scopes_claim([SCOPE, other, SCOPE], ["fetch"])
    assert listed == [[[7], [b"kvcs-1", SCOPE]], [[7], [b"kvcs-1", other]]]


@pytest.mark.parametrize(
    ("scopes", "allow"), [([], ["fetch"]), ([SCOPE], []), ([SCOPE[:15]], ["fetch"])]
)
def test_what_makes_no_token(scopes: list[bytes], allow: list[str]) -> None:
    with pytest.raises(UsageError):
        scopes_claim(scopes, allow)
    assert sorted(ALLOW) == ["fetch", "publish", "subscribe"]
