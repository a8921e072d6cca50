"""moqt.auth.scopes: what the `moqt` claim grants, by the draft's vectors, by hand and by a model of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moqt.auth import ACTION_NUMBERS, Action, Match, MatchKind, Scope, permits, scopes_of
from moqt.errors import TokenFault

"""For a machine that has other things to do."""

VECTORS = Path(__file__).parents[2] / "vectors"
C4M = json.loads((VECTORS / "c4m-vectors.json").read_text("utf-8"))
KVCS = json.loads((VECTORS / "auth-kvcs-vectors.json").read_text("utf-8"))
MOQT = 327


def claimed(payload: str) -> tuple[Scope, ...]:
    return scopes_of(cbor2.loads(bytes.fromhex("".join(payload.split())))[MOQT])


DRAFT_CASES = [
    (claimed(vector["payload_cbor_hex"]), case, vector["id"])
    for vector in C4M["MOQT Authorization Scopes"]
    for case in vector["authorization_tests"]
]


@pytest.mark.parametrize(("scopes", "case", "name"), DRAFT_CASES)
def test_the_vectors_of_the_draft(scopes: tuple[Scope, ...], case: Any, name: str) -> None:
    """R2: the 19 cases of C4M."""
    namespace = tuple(field.encode() for field in case["namespace"])
    granted = any(s.grants(case["action"], namespace, case["track"].encode()) for s in scopes)
    assert granted is case["expected"]


def test_there_are_all_of_them() -> None:
    assert len(DRAFT_CASES) == 19
    assert len(KVCS["authz"]) == 16


NUMBERS = {number: action for action, (number, *more) in ACTION_NUMBERS.items() if not more}
BY_NAME = {token["name"]: claimed(token["claims_cbor"]) for token in KVCS["tokens"]}


@pytest.mark.parametrize("case", KVCS["authz"])
def test_the_vectors_of_kvcs(case: Any) -> None:
    """R2: tokens for (kvcs-1, Scope ID)."""
    namespace = tuple(bytes.fromhex(field) for field in case["namespace"])
    track = case["track"].encode() or None
    granted = permits(BY_NAME[case["token"]], NUMBERS[case["action"]], namespace, track)
    assert granted is case["expected"]


def scope(*matches: object, actions: tuple[int, ...] = (4,), track: object = None) -> list[Any]:
    return [list(actions), *([list(matches)] if matches else []), *([track] if track else [])]


@pytest.mark.parametrize(
    ("match", "name", "fits"),
    [
        (b"a", b"a", True),
        (b"a", b"A", False),
        (b"", b"", True),
        (b"", b"a", False),
        ([1, b"ab"], b"ab", True),
        ([1, b"ab"], b"abc", True),
        ([1, b"ab"], b"a", False),
        ([1, b""], b"\xff\0", True),
        ([2, b"bc"], b"abc", True),
        ([2, b"bc"], b"bcd", False),
        ((2, b"bc"), b"c", False),
    ],
)
def test_a_field_is_compared_octet_by_octet(match: object, name: bytes, fits: bool) -> None:
    (read,) = scopes_of([scope(match)])
    assert read.grants(4, (name,), b"t") is fits
    (read,) = scopes_of([[[4], [b"n"], match]])
    assert read.grants(4, (b"n",), name) is fits


@pytest.mark.parametrize(
    ("matches", "namespace", "fits"),
    [
        ((), (), True),
        ((), (b"any", b"thing"), True),
        ((b"a",), (b"a", b"b"), True),
        ((b"a", b"b"), (b"a",), False),
        ((b"a", None), (b"a",), True),
        ((b"a", None), (b"a", b"b"), False),
        ((None,), (), True),
        ((None,), (b"a",), False),
    ],
)
def test_the_length_of_a_namespace(
    matches: tuple[object, ...], namespace: tuple[bytes, ...], fits: bool
) -> None:
    """A nil at the end says that longer ones are not included."""
    assert permits(scopes_of([scope(*matches)]), Action.SUBSCRIBE, namespace, b"t") is fits


def test_what_is_asked_for_below_a_prefix_needs_a_scope_that_goes_below() -> None:
    """SUBSCRIBE_NAMESPACE of a prefix tells of everything under it."""
    for action in (Action.SUBSCRIBE_NAMESPACE, Action.SUBSCRIBE_TRACKS):
        exact = scopes_of([scope(b"a", None, actions=(3, 4))])
        assert not permits(exact, action, (b"a",), None)
        assert permits(scopes_of([scope(b"a", actions=(3, 4))]), action, (b"a",), None)


def test_a_scope_for_some_tracks_grants_no_namespace() -> None:
    scopes = scopes_of([[[2, 3, 6], [b"a"], [1, b""]]])
    assert permits(scopes, Action.PUBLISH, (b"a",), b"t")
    assert not permits(scopes, Action.PUBLISH_NAMESPACE, (b"a",), None)
    assert not permits(scopes, Action.SUBSCRIBE_NAMESPACE, (b"a",), None)


def test_subscribe_tracks_needs_both_of_its_halves() -> None:
    """C4M has no number for it; two scopes may give one each."""
    halves = [scope(b"a", actions=(3,)), scope(b"a", actions=(4,))]
    for half in halves:
        assert not permits(scopes_of([half]), Action.SUBSCRIBE_TRACKS, (b"a",), None)
    assert permits(scopes_of(halves), Action.SUBSCRIBE_TRACKS, (b"a",), None)


@pytest.mark.parametrize("action", Action)
def test_what_is_not_listed_is_not_granted(action: Action) -> None:
    others = sorted(set(range(20)) - set(ACTION_NUMBERS[action]))
    assert not permits(scopes_of([[others]]), action, (b"a",), b"t")
    assert permits(scopes_of([[list(ACTION_NUMBERS[action])]]), action, (b"a",), None)
    assert not permits((), action, (b"a",), b"t")


@pytest.mark.parametrize(
    "claim",
    [
        None,
        {},
        [],
        "",
        b"",
        [[]],
        [[4]],
        [[[]]],
        [[["4"]]],
        [[[True]]],
        [[[-1]]],
        [[[4, 4]]],
        [[[4.0]]],
        [[[4], []]],
        [[[4], [None, b"a"]]],
        [[[4], [None, None]]],
        [[[4], [[0, b"a"]]]],
        [[[4], [[3, b"a"]]]],
        [[[4], [{0: b"a"}]]],
        [[[4], [["1", b"a"]]]],
        [[[4], [[True, b"a"]]]],
        [[[4], [[1, "a"]]]],
        [[[4], [[1]]]],
        [[[4], ["a"]]],
        [[[4], [b"a"], None]],
        [[[4], [b"a"], "t"]],
        [[[4], [b"a"], b"t", b"u"]],
        [[[4]]] * 65,
        [[[4], [b"a"] * 34]],
        [[list(range(33))]],
    ],
)
def test_other_claims_are_refused(claim: object) -> None:
    with pytest.raises(TokenFault):
        scopes_of(claim)


FIELDS = st.binary(max_size=3)
MATCHES = st.builds(Match, st.sampled_from(MatchKind), FIELDS)
SCOPES = st.builds(
    Scope,
    st.frozensets(st.integers(0, 9), min_size=1),
    st.lists(MATCHES, max_size=3).map(tuple),
    st.booleans(),
    st.none() | MATCHES,
)
NAMES = st.lists(FIELDS, max_size=4).map(tuple)


def written(given_scope: Scope) -> list[Any]:
    def one(match: Match) -> object:
        return match.octets if match.kind is MatchKind.EXACT else [int(match.kind), match.octets]

    fields: list[object] = [one(match) for match in given_scope.namespace]
    if given_scope.exact_length:
        fields.append(None)
    out: list[Any] = [sorted(given_scope.actions)]
    if fields:
        out.append(fields)
    if given_scope.track is not None and fields:
        out.append(one(given_scope.track))
    return out


@given(SCOPES)
def test_what_is_written_is_what_is_read(given_scope: Scope) -> None:
    if given_scope.track is not None and not given_scope.namespace:
        return  # cannot be said: the namespace's list is never empty
    assert scopes_of(cbor2.loads(cbor2.dumps([written(given_scope)]))) == (given_scope,)


@given(st.lists(SCOPES, max_size=3), st.sampled_from(Action), NAMES, st.none() | FIELDS, FIELDS)
def test_a_grant_holds_for_what_is_longer_where_it_may_go_below(
    scopes: list[Scope],
    action: Action,
    namespace: tuple[bytes, ...],
    track: bytes | None,
    more: bytes,
) -> None:
    """No namespace under a granted prefix is out of reach of the scopes that granted it."""
    if action in {Action.SUBSCRIBE_NAMESPACE, Action.SUBSCRIBE_TRACKS} and permits(
        scopes, action, namespace, None
    ):
        assert permits(scopes, action, (*namespace, more), None)
    if permits(scopes, action, namespace, None):
        assert permits([*scopes, Scope(frozenset({0}))], action, namespace, track)


@given(st.recursive(st.none() | st.integers() | FIELDS, lambda inner: st.lists(inner, max_size=4)))
def test_any_claim_is_read_or_refused(claim: object) -> None:
    try:
        assert scopes_of(claim)
    except TokenFault:
        pass
