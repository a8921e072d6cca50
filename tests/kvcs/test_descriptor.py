"""kvcs.kvsp.descriptor: the Compatibility Descriptor and its canonical form."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from kvcs.errors import UsageError
from kvcs.kvsp.descriptor import MAX_DEPTH, MAX_INTEGER, Descriptor, canonical_json
from kvcs.payload import Component
from kvcs.strictjson import loads
from tests.support.caches import REAL_DESCRIPTOR, VECTORS, descriptor, descriptor_json

PROFILE: dict[str, Any] = json.loads((VECTORS / "kvsp-profile-vectors.json").read_text("utf-8"))


def test_the_vector() -> None:
    """The profile's descriptor has the vector's canonical form."""
    parsed = Descriptor.from_json(PROFILE["descriptor"])
    assert parsed.canonical().decode("utf-8") == PROFILE["descriptor_jcs"]
    assert hashlib.sha256(parsed.canonical()).hexdigest() == PROFILE["descriptor_jcs_sha256"]
    assert (parsed.layers, parsed.kv_heads, parsed.head_dim, parsed.v_head_dim) == (32, 8, 128, 128)
    assert (parsed.dtype, parsed.block_tokens, parsed.element_size) == ("bf16", 4, 2)
    assert parsed.json == PROFILE["descriptor"]


@pytest.mark.parametrize("case", PROFILE["jcs"], ids=range(len(PROFILE["jcs"])))
def test_canonical_json(case: dict[str, Any]) -> None:
    assert canonical_json(case["in"]).decode("utf-8") == case["out"]


@pytest.mark.parametrize("text", PROFILE["jcs_reject"])
def test_outside_the_profile(text: str) -> None:
    with pytest.raises(UsageError):
        canonical_json(loads(text.encode("ascii"), what="it", max_octets=99, error=UsageError))


@pytest.mark.parametrize("container", PROFILE["raw_container"], ids=lambda case: str(case["name"]))
def test_section_sizes(container: dict[str, Any]) -> None:
    """O5: sections have the vector's sizes, without header or padding."""
    parsed = descriptor(
        kv_heads=container["kv_heads"],
        head_dim=container["head_dim"],
        block_tokens=container["tokens"],
    )
    assert parsed.section_size(Component.K) == container["k_len"]
    assert parsed.section_size(Component.V) == container["v_len"]
    assert parsed.section_size(Component.KV) == container["k_len"] + container["v_len"]


def test_v_may_be_narrower() -> None:
    parsed = descriptor(v_head_dim=1, dtype="f32")
    sizes = [parsed.section_size(part) for part in Component]
    assert sizes == [4 * 2 * 4 * 4, 4 * 2 * 1 * 4, 4 * 2 * 5 * 4]


def test_member_order_does_not_matter_and_unknown_members_do() -> None:
    members = descriptor_json()
    turned = Descriptor.from_json(dict(reversed(members.items())))
    assert turned == descriptor()
    assert hash(turned) == hash(descriptor())
    assert turned.canonical() == descriptor().canonical()
    assert descriptor(rope={"theta": "1e6"}) != descriptor()


def test_the_real_descriptor() -> None:
    parsed = Descriptor.from_bytes(REAL_DESCRIPTOR.read_bytes())
    assert parsed.section_size(Component.K) == 64 * 3 * 64 * 2


@pytest.mark.parametrize("name", [name for name in descriptor_json() if name != "rope"])
def test_required_members(name: str) -> None:
    members = descriptor_json()
    del members[name]
    with pytest.raises(UsageError, match=name):
        Descriptor.from_json(members)


@pytest.mark.parametrize(
    "changes",
    [
        {"layers": 0},
        {"layers": 4097},
        {"layers": True},
        {"layers": "3"},
        {"layers": [3]},
        {"kv_heads": -1},
        {"head_dim": 1 << 17},
        {"v_head_dim": 0},
        {"block_tokens": 1 << 30},
        {"block_tokens": 1 << 16, "kv_heads": 256, "head_dim": 128},
        {"dtype": "bf8"},
        {"dtype": ["bf16"]},
        {"dtype": ""},
        {"model": 7},
        {"extra": None},
        {"extra": [1, {"a": 0.5}]},
        {"extra": float("nan")},
        {"extra": MAX_INTEGER + 1},
        {"extra": "\ud800"},
        {"\udfff": 1},
        {"extra": "x" * 70_000},
        {7: 1},
    ],
    ids=str,
)
def test_unusable_values(changes: dict[Any, object]) -> None:
    with pytest.raises(UsageError) as caught:
        Descriptor.from_json(descriptor_json() | changes)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("value", [None, [], "x", 7, True])
def test_not_an_object(value: object) -> None:
    with pytest.raises(UsageError, match="expected a JSON object"):
        Descriptor.from_json(value)


def test_depth_is_bounded() -> None:
    nested: object = 1
    for _ in range(MAX_DEPTH - 2):
        nested = [nested]
    descriptor(extra=nested)
    with pytest.raises(UsageError, match="nested"):
        descriptor(extra=[nested])
    for _ in range(20_000):
        nested = [nested]
    with pytest.raises(UsageError, match="nested"):
        descriptor(extra=nested)


@pytest.mark.parametrize("data", [b"", b"{}", b'{"a":1,"a":1}', b'{"a":null}', b"[" * 60_000])
def test_unusable_text(data: bytes) -> None:
    with pytest.raises(UsageError, match=r"^descriptor: "):
        Descriptor.from_bytes(data)
