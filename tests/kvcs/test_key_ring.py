"""Key rings: which key protects, which opens, and the files they are kept in."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcs.errors import UsageError
from kvcs.key_ring import MAX_KEYS, MAX_OCTETS, KeyRing, RingKey, load_keys, parse_keys, write_keys
from kvcs.payload import Discard, DiscardReason
from kvcs.secure_objects import LEAST_KEY_ID, Suite

A, B, C = LEAST_KEY_ID, LEAST_KEY_ID + 1, LEAST_KEY_ID + 2
SECRET = bytes(range(32))


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def key(key_id: int, not_before: int | None = None, retire_after: int | None = None) -> RingKey:
    return RingKey(key_id, SECRET, Suite(4), not_before, retire_after)


def missing(ring: KeyRing, key_id: int) -> str:
    with pytest.raises(Discard) as caught:
        ring.find(key_id)
    assert caught.value.reason is DiscardReason.KEY
    return caught.value.detail


def test_the_latest_key_that_may_be_used_protects() -> None:
    """X3: a key that was given to everybody beforehand comes into use by itself, and one may be retired."""
    clock = Clock()
    ring = KeyRing([key(A), key(B, 2000), key(C, 1000, 3000)], clock)
    assert ring.current.key_id == C
    clock.now = 999
    assert ring.current.key_id == A
    clock.now = 2000
    assert ring.current.key_id == B
    clock.now = 2500
    ring.replace([key(A), key(B, None, 3000)])
    assert ring.current.key_id == B
    clock.now = 3000
    assert ring.current.key_id == A
    ring.replace([key(B, None, 3000), key(C, 4000)])
    with pytest.raises(UsageError, match="no key of it may be used now; add one"):
        _ = ring.current


def test_every_key_that_is_not_retired_opens() -> None:
    """X3: one that is not used yet as well, for clocks differ."""
    clock = Clock()
    ring = KeyRing([key(A, None, 1001), key(B, 5000)], clock)
    assert ring.find(A).key_id == A
    assert ring.find(B).key_id == B
    assert "key 10000000002, which the key ring lacks" in missing(ring, C)
    clock.now = 1001
    assert "key 10000000000, which is retired" in missing(ring, A)
    ring.replace([key(C)])
    assert "lacks" in missing(ring, B)


def test_keys_are_exchanged_whole_or_not_at_all() -> None:
    """X3."""
    ring = KeyRing([key(A)])
    for bad in ([], [key(A), key(A)], [key(A + n) for n in range(MAX_KEYS + 1)]):
        with pytest.raises(UsageError, match="expected 1 to 64 keys"):
            ring.replace(bad)
    assert [k.key_id for k in ring.keys] == [A]


def test_generated_keys() -> None:
    """X3: Key IDs that MOQT takes for no time-out that would ever pass, six octets long; 32 random octets."""
    keys = [RingKey.generate(suite) for suite in Suite for _ in range(8)]
    assert all(LEAST_KEY_ID <= k.key_id < 1 << 42 and len(k.secret) == 32 for k in keys)
    assert len({k.key_id for k in keys}) == len({k.secret for k in keys}) == 16
    assert {k.suite for k in keys} == set(Suite)


@pytest.mark.parametrize("key_id", [1, 7, LEAST_KEY_ID - 1, 1 << 64, -1])
def test_key_ids_that_are_time_outs_are_refused(key_id: int) -> None:
    """X3."""
    with pytest.raises(UsageError, match="MOQT takes it for a time-out"):
        key(key_id)
    assert key(0).key_id == 0


def test_no_secret_is_shown() -> None:
    """X3."""
    ring = KeyRing([key(A)])
    for text in (repr(ring), repr(ring.keys), str(ring)):
        assert "\\x01\\x02" not in text
        assert SECRET.hex() not in text
    assert repr(ring) == "KeyRing(10000000000)"


# Files


def test_a_file_is_for_its_owner_and_says_all(tmp_path: Path) -> None:
    """X3: what was written is read again; a file is replaced, never half written."""
    path = tmp_path / "ring.json"
    keys = [key(A, 5, 10), RingKey(0, bytes(64), Suite(5)), RingKey.generate(Suite(5))]
    write_keys(path, [key(B)])
    write_keys(path, keys)
    assert load_keys(path) == keys
    assert KeyRing.load(path).keys == tuple(keys)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["ring.json"]
    assert json.loads(path.read_text())["keys"][0] == {
        "kty": "oct",
        "kid": "10000000000",
        "alg": "AES_128_GCM_SHA256_128",
        "k": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8",
        "nbf": 5,
        "exp": 10,
    }


def jwk(**changes: Any) -> dict[str, Any]:
    members = key(A).to_json() | changes
    return {name: value for name, value in members.items() if value is not ...}


BAD: list[tuple[object, str]] = [
    ([], "expected a JWK Set"),
    ({}, "expected a JWK Set"),
    ({"keys": {}}, "expected a JWK Set"),
    ({"keys": [1]}, "expected a JWK Set"),
    (jwk(), "expected a JWK Set"),
    ({"keys": []}, "expected 1 to 64 keys, it has 0"),
    ({"keys": [jwk(kid=f"{A + n:x}") for n in range(65)]}, "it has 65"),
    ({"keys": [jwk(), jwk()]}, "occurs twice"),
    ({"keys": [jwk(kty="EC")]}, "its kty must be oct"),
    ({"keys": [jwk(kty=...)]}, "its kty must be oct"),
    *(
        ({"keys": [jwk(kid=kid)]}, "1 to 16 lower-case hex digits")
        for kid in (..., A, "", "0x1", "00", "A" * 11, "1" * 17, "prod")
    ),
    ({"keys": [jwk(kid="7")]}, "takes it for a time-out"),
    ({"keys": [jwk(alg="A128GCM")]}, "alg must be AES_128_GCM_SHA256_128 or AES_256"),
    ({"keys": [jwk(alg=...)]}, "alg must be"),
    ({"keys": [jwk(k="AAEC")]}, "32 to 64 octets, it has 3"),
    ({"keys": [jwk(k="A" * 90)]}, "32 to 64 octets, it has 67"),
    *(
        ({"keys": [jwk(k=k)]}, "base64url without padding")
        for k in (..., 7, "A" * 43 + "=", "A" * 42 + "B", "+" * 43, "é" * 43, "A" * 45)
    ),
    *(
        ({"keys": [jwk(**{name: time})]}, f"{name} must be a time")
        for name in ("nbf", "exp")
        for time in (-1, True, "1", 1 << 41)
    ),
]


@pytest.mark.parametrize(("document", "reason"), BAD)
def test_files_that_are_refused(document: object, reason: str, tmp_path: Path) -> None:
    """X3: in one line that names the file, and never the key."""
    path = tmp_path / "ring.json"
    path.write_text(json.dumps(document), "utf-8")
    with pytest.raises(UsageError, match=reason) as caught:
        load_keys(path)
    text = str(caught.value)
    assert text.startswith(f"key ring: {path}: ")
    assert "\n" not in text
    assert "AAEC" not in text


def test_other_files_and_places(tmp_path: Path) -> None:
    """X3: none, too large, no JSON, duplicate names, nowhere to write."""
    with pytest.raises(UsageError, match=r"key ring: cannot read .*: No such file"):
        load_keys(tmp_path / "none")
    with pytest.raises(UsageError, match=f"at most {MAX_OCTETS} octets"):
        parse_keys(b" " * (MAX_OCTETS + 1))
    with pytest.raises(UsageError, match="not JSON"):
        parse_keys(b"scope key")
    with pytest.raises(UsageError, match="twice in one object"):
        parse_keys(b'{"keys": [], "keys": []}')
    with pytest.raises(UsageError, match=r"cannot write .*: No such file"):
        write_keys(tmp_path / "none" / "ring", [key(A)])


def test_other_members_are_ignored() -> None:
    """X3: of the set and of a key."""
    document = {"keys": [jwk(use="enc", x="?")], "note": "n"}
    assert parse_keys(json.dumps(document).encode()) == [key(A)]


@given(st.binary(max_size=200))
def test_any_octets_are_keys_or_refused(data: bytes) -> None:
    """X3."""
    try:
        parse_keys(data)
    except UsageError:
        pass
