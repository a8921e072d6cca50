"""kvcs.kvsp.identity: this project's profile and its seam."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from kvcs.errors import UsageError
from kvcs.kvsp.descriptor import Descriptor
from kvcs.kvsp.identity import (
    PROFILE,
    ExtraKeys,
    Identity,
    LiteralProfile,
    MediaItem,
    block_keys_digest,
    pack_tokens,
)
from kvcs.naming import PublicationName
from tests.support.caches import VECTORS, descriptor

VECTOR: dict[str, Any] = json.loads((VECTORS / "kvsp-profile-vectors.json").read_text("utf-8"))
KEY = bytes.fromhex(VECTOR["scope_key"])
DESCRIPTOR = Descriptor.from_json(VECTOR["descriptor"])
TOKENS: list[int] = VECTOR["tokens"]
COMPAT_ID = bytes.fromhex(VECTOR["compat_id"])


def keys(tokens: list[int], extra: ExtraKeys | None = None) -> list[str]:
    found = PROFILE.block_keys(KEY, COMPAT_ID, tokens, VECTOR["block_tokens"], extra)
    return [key.hex() for key in found]


def test_the_vectors() -> None:
    """M6: every identifier of the profile's vectors, and the digest of the Block Keys."""
    identity = Identity.derive(KEY, DESCRIPTOR, TOKENS)
    assert identity.scope_id.hex() == VECTOR["scope_id"]
    assert identity.compat_id.hex() == VECTOR["compat_id"]
    assert [key.hex() for key in identity.block_keys] == VECTOR["block_keys"]
    assert identity.anchor(2).hex() == VECTOR["anchor_key_2_blocks"]
    assert block_keys_digest(identity.block_keys).hex() == VECTOR["block_keys_sha256"]
    assert PROFILE.name == VECTOR["profile"]


def test_a_short_scope_key() -> None:
    short = VECTOR["scope_key_16"]
    assert PROFILE.scope_id(bytes.fromhex(short["scope_key"])).hex() == short["scope_id"]


def test_extra_keys() -> None:
    lora, both = VECTOR["extra_keys"]
    adapter = bytes.fromhex(lora["extra"][0][1])
    assert keys(TOKENS[:4], ExtraKeys(lora=adapter)) == [lora["block_key"]]
    image = bytes.fromhex(both["extra"][1][1])
    item = MediaItem(int.from_bytes(image[:4], "big"), 1, image[4:])
    extra = ExtraKeys(lora=adapter, media=(item,))
    assert keys(TOKENS[:4], extra) == [both["block_key"]]


def test_a_media_item_counts_in_every_block_it_overlaps() -> None:
    item = MediaItem(2, 5, bytes(32))
    extra = ExtraKeys(media=(item,), salt=b"s")
    first, second, third = (extra.of_block(index, 4) for index in range(3))
    assert first == [(b"mm", b"\x00\x00\x00\x02" + bytes(32)), (b"salt", b"s")]
    assert second == [(b"mm", b"\xff\xff\xff\xfe" + bytes(32))]
    assert third == []


def test_the_largest_token() -> None:
    big = VECTOR["big_token"]
    assert keys(big["tokens"]) == [big["block_key"]]


@pytest.mark.parametrize("bad", [[-1], [1 << 32], [1.0], ["1"], [None], [1 << 80]])
def test_tokens_that_do_not_fit(bad: list[Any]) -> None:
    with pytest.raises(UsageError, match="expected integers from 0 to 4294967295"):
        pack_tokens([1, 2, 3, *bad])


def test_arrays_are_token_lists_too() -> None:
    array: Any = np.array(TOKENS, np.int64)
    assert Identity.derive(KEY, DESCRIPTOR, array) == Identity.derive(KEY, DESCRIPTOR, TOKENS)


def test_a_longer_prompt_continues_the_chain() -> None:
    """A shorter prefix's anchor is an earlier key of the same chain; other tokens part from there on."""
    long = keys(list(range(40)))
    assert long[:5] == keys(list(range(20)))
    other = keys([*range(8), 99, *range(9, 40)])
    assert other[:2] == long[:2]
    assert not set(other[2:]) & set(long[2:])


@pytest.mark.parametrize(("tokens", "text"), [([], "empty"), ([1, 2, 3], "fewer than one block")])
def test_less_than_a_block(tokens: list[int], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        Identity.derive(KEY, DESCRIPTOR, tokens)


@pytest.mark.parametrize("size", [0, 15, 65])
def test_wrong_key_lengths(size: int) -> None:
    with pytest.raises(UsageError, match=f"expected 16 to 64 octets, got {size}"):
        Identity.derive(bytes(size), DESCRIPTOR, TOKENS)


def test_another_profile_is_refused() -> None:
    with pytest.raises(UsageError, match="expected profile 'kvsp-profile-1', got 'other'"):
        Identity.derive(KEY, descriptor(profile="other"), TOKENS)


def test_anchor_is_bounded() -> None:
    identity = Identity.derive(KEY, DESCRIPTOR, TOKENS)
    for blocks in (0, -1, 3):
        with pytest.raises(UsageError):
            identity.anchor(blocks)


def test_compat_id_of_another_descriptor() -> None:
    """M7: what a manifest's compat is compared with."""
    identity = Identity.derive(KEY, DESCRIPTOR, TOKENS)
    again = Descriptor.from_json(dict(reversed(VECTOR["descriptor"].items())))
    assert identity.compat_id_of(again) == identity.compat_id
    assert identity.compat_id_of(descriptor()) != identity.compat_id


def test_the_scope_key_is_not_shown() -> None:
    text = repr(Identity.derive(KEY, DESCRIPTOR, TOKENS))
    assert KEY.hex() not in text
    assert repr(KEY) not in text


def test_literal_identifiers() -> None:
    """N3: the draft's identifiers can be put in; they are opaque octets."""
    anchor = bytes.fromhex("653275884ca44f8945fd4c902611c467394b73656e64c78d8522648cb75aefc1")
    literal = LiteralProfile(b"s" * 16, b"c" * 32, (b"1" * 32, anchor, b"3" * 32))
    identity = Identity.derive(b"", DESCRIPTOR, TOKENS, profile=literal)
    assert identity.anchor(2) == anchor
    assert identity.block_keys == (b"1" * 32, anchor)
    assert identity.compat_id_of(descriptor()) == b"c" * 32
    name = PublicationName(identity.scope_id, identity.compat_id, anchor, bytes(16))
    assert len(name.namespace) == 5


def test_long_prompts_are_quick() -> None:
    identity = Identity.derive(KEY, DESCRIPTOR, range(100_000))
    assert len(set(identity.block_keys)) == 25_000


def test_keys_do_not_depend_on_the_process() -> None:
    """Three processes with different PYTHONHASHSEED compute the same identifiers."""
    program = (
        "import json, sys; from kvcs.kvsp.descriptor import Descriptor; "
        "from kvcs.kvsp.identity import Identity; "
        "d = Descriptor.from_json(json.loads(sys.argv[1])); "
        "i = Identity.derive(bytes(range(32)), d, range(1, 65)); "
        "print(i.scope_id.hex(), i.compat_id.hex(), *[k.hex() for k in i.block_keys])"
    )
    told = {
        subprocess.run(  # noqa: S603 - our own interpreter and program
            [sys.executable, "-c", program, json.dumps(VECTOR["descriptor"])],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4242")
    }
    assert len(told) == 1
    assert told.pop().split()[:2] == [VECTOR["scope_id"], VECTOR["compat_id"]]
