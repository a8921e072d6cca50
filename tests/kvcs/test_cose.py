"""kvcs.cose: the shape of a COSE_Sign1, and the rules for its headers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cbor2
import pytest

from kvcs import cose, envelope
from kvcs.cose import Sign1, algorithm_and_key_id, open_sign1, payload_of_cose
from kvcs.errors import ManifestError

PROTECTED = cbor2.dumps({1: -7, 4: b"kid"})
SIGNATURE = bytes(64)


def sign1(*items: Any, tag: int | None = 18) -> bytes:
    parts = list(items)
    return cbor2.dumps(parts if tag is None else cbor2.CBORTag(tag, parts))


@pytest.mark.parametrize("tag", [18, None])
def test_its_parts(tag: int | None) -> None:
    """M1, M8: tagged or not; the protected header stays as received, for the signature covers it."""
    padded = bytes.fromhex("a218012604436b6964")
    data = sign1(padded, {99: "x"}, b"{}", SIGNATURE, tag=tag)
    opened = open_sign1(data)
    assert (opened.protected, opened.payload, opened.signature) == (padded, b"{}", SIGNATURE)
    assert dict(opened.unprotected) == {99: "x"}
    assert payload_of_cose(data) == b"{}"
    assert algorithm_and_key_id(opened) == (-7, b"kid")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"\x9b" + b"\xff" * 8,
        b"\x5b" + b"\x7f" * 8,
        b"\x81" * 10_000,
        b"\x9a\x00\x10\x00\x00" + bytes(1 << 20),
        sign1(PROTECTED, {}, b"{}", SIGNATURE) + b"\0",
        sign1(PROTECTED, {}, b"{}", SIGNATURE)[:-1],
        sign1(PROTECTED, {}, b"{}", SIGNATURE, tag=98),
        sign1(PROTECTED, {}, b"{}"),
        sign1(PROTECTED, {}, None, SIGNATURE),
        sign1(PROTECTED, {}, "{}", SIGNATURE),
        sign1(PROTECTED, [], b"{}", SIGNATURE),
        sign1({}, {}, b"{}", SIGNATURE),
        sign1(PROTECTED, {}, b"{}", "x"),
        sign1(PROTECTED, {1: cbor2.CBORTag(0, "2013")}, b"{}", SIGNATURE),
        cbor2.dumps({"a": 1}),
        cbor2.dumps(cbor2.CBORTag(18, b"{}")),
        b"\xd2\x9f\x40\xa0\x42{}\x40\xff",
        b"\x84\x5f\xff\xa0\x42{}\x40",
    ],
)
def test_other_shapes(data: bytes) -> None:
    """M1, M8: anything but a COSE_Sign1 with its payload attached is refused."""
    for read in (open_sign1, payload_of_cose):
        with pytest.raises(ManifestError, match=r"^manifest\.cose: not a COSE_Sign1: "):
            read(data)


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """M2: before anything is parsed."""
    data = sign1(PROTECTED, {}, bytes(200), SIGNATURE)
    monkeypatch.setattr(cose, "_RULES", replace(cose._RULES, max_octets=100))
    monkeypatch.setattr(envelope, "MAX_WRAPPING", 100)
    with pytest.raises(ManifestError, match=r"at most 200 octets are accepted, it has \d+;"):
        open_sign1(data)


@pytest.mark.parametrize("algorithm", [-7, -8])
@pytest.mark.parametrize("length", [1, 64])
def test_headers_that_are_accepted(algorithm: int, length: int) -> None:
    """M8: ES256 or EdDSA, protected; kid of up to 64 octets in either header; other headers are ignored."""
    kid = bytes(length)
    for protected, unprotected in (
        ({1: algorithm, 4: kid}, {}),
        ({1: algorithm, 3: "application/json", "x": [1]}, {4: kid, 99: {1: 2}}),
    ):
        opened = Sign1(cbor2.dumps(protected), unprotected, b"", SIGNATURE)  # type: ignore[arg-type]
        assert algorithm_and_key_id(opened) == (algorithm, kid)


@pytest.mark.parametrize(
    ("protected", "unprotected", "signature", "fault"),
    [
        ({1: -7, 4: b"k", 2: [99]}, {}, 64, "critical"),
        ({1: -7, 4: b"k"}, {2: [1]}, 64, "critical"),
        ({1: -7, 4: b"k"}, {4: b"k"}, 64, "header 4 is both"),
        ({1: -7, 4: b"k"}, {1: -7}, 64, "header 1 is both"),
        ({1: -7, 4: b"k", "x" * 99: 1}, {"x" * 99: 2}, 64, r"header 'x+\.\.\. is both"),
        ({4: b"k"}, {1: -7}, 64, "names no algorithm"),
        (b"", {1: -7, 4: b"k"}, 64, "names no algorithm"),
        ({1: "ES256", 4: b"k"}, {}, 64, "it is 'ES256'"),
        ({1: True, 4: b"k"}, {}, 64, "it is True"),
        ({1: -7.0, 4: b"k"}, {}, 64, r"it is -7\.0"),
        ({1: -9, 4: b"k"}, {}, 64, "it is -9"),
        ({1: -19, 4: b"k"}, {}, 64, "it is -19"),
        ({1: [-7], 4: b"k"}, {}, 64, "it is list"),
        ({1: -7}, {}, 64, "kid"),
        ({1: -7, 4: "k"}, {}, 64, "kid"),
        ({1: -7, 4: b""}, {}, 64, "kid"),
        ({1: -7, 4: bytes(65)}, {}, 64, "kid"),
        ({1: -7, 4: None}, {4: b"k"}, 64, "header 4 is both"),
        ({1: -7, 4: b"k"}, {}, 63, "must have 64 octets, it has 63"),
        ({1: -7, 4: b"k"}, {}, 65, "must have 64 octets, it has 65"),
        ({1: -7, 4: b"k", b"l": 1}, {}, 64, "neither a number nor text"),
        ({1: -7, 4: b"k"}, {b"l": 1}, 64, "neither a number nor text"),
        (b"\x80", {}, 64, "expected a map"),
        (b"\xa1\x01\x26\x00", {4: b"k"}, 64, "octets follow"),
        (b"\xbf\x01\x26\xff", {4: b"k"}, 64, "indefinite"),
        (b"\xd2\xa1\x01\x26", {4: b"k"}, 64, "tag"),
        (cbor2.dumps({1: -7, 4: b"k", 99: bytes(5000)}), {}, 64, "at most 4096 octets"),
    ],
)
def test_headers_that_are_refused(
    protected: Any, unprotected: Any, signature: int, fault: str
) -> None:
    """M8: what a library would let pass."""
    octets = protected if isinstance(protected, bytes) else cbor2.dumps(protected)
    with pytest.raises(ManifestError, match=fault) as caught:
        algorithm_and_key_id(Sign1(octets, unprotected, b"", bytes(signature)))
    assert str(caught.value).startswith("manifest.cose: ")
    assert str(caught.value).endswith("; the publication is discarded")
