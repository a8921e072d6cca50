"""kvcs.formats.kvfile_sink: writing kvcs-kv/1 files."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from kvcs.errors import Incomplete, UsageError
from kvcs.formats.safetensors import KvFile, KvFileSink, write_kv_file
from kvcs.kvsp.descriptor import Descriptor
from kvcs.payload import Component
from tests.support.caches import descriptor, names, section, tensor, write_cache

Place = tuple[Component, int, int]

# bf16: quiet and signalling NaN, -0.0, infinities, the smallest and largest subnormals.
SPECIAL = b"".join(
    value.to_bytes(2, "little")
    for value in (0x7FC0, 0x7F81, 0xFFFF, 0x8000, 0x7F80, 0xFF80, 0x0001, 0x807F)
)


def places(layers: Iterable[int], blocks: int) -> list[Place]:
    return [(p, n, b) for p in (Component.K, Component.V) for n in layers for b in range(blocks)]


def fill(sink: KvFileSink, of: Descriptor, wanted: Iterable[Place]) -> None:
    for part, layer, block in wanted:
        assert sink.destination(part, layer, block) is None
        sink.commit(part, layer, block, section(part, layer, block, of.section_size(part)))


def check(path: Path, of: Descriptor, layers: range, tokens: int) -> KvFile:
    with KvFile(path) as file:
        assert (file.layers, file.tokens) == (layers, tokens)
        for part, layer, _ in places(layers, 1):
            octets = bytearray(tokens * of.token_size(part))
            file.read_tokens_into(part, layer, 0, memoryview(octets))
            assert octets == tensor(of, part, layer, tokens)
    return file


@pytest.mark.parametrize("seed", range(5))
def test_any_order(tmp_path: Path, seed: int) -> None:
    of = descriptor(v_head_dim=2)
    wanted = places(range(3), 4)
    random.Random(seed).shuffle(wanted)
    path = tmp_path / "out"
    sink = KvFileSink(path, of, 4, token_ids=range(100, 120), model="m")
    fill(sink, of, wanted)
    assert not path.exists()
    sink.finish(4)
    file = check(path, of, range(3), 16)
    assert (file.model, file.descriptor, file.is_part) == ("m", of, False)
    assert file.first_token == 0
    assert names(tmp_path) == ["out"]


def test_it_equals_a_file_written_at_once(tmp_path: Path) -> None:
    """O5: layout and header of both writers agree in every tensor."""
    whole = write_cache(tmp_path / "whole", descriptor(), 16)
    with KvFileSink(tmp_path / "out", descriptor(), 4, token_ids=range(16), model="test") as sink:
        fill(sink, descriptor(), places(range(3), 4))
        sink.finish(4)
    with KvFile(tmp_path / "out") as one, KvFile(whole) as other:
        assert (one.tensors, one.metadata, one.token_ids()) == (
            other.tensors,
            other.metadata,
            other.token_ids(),
        )
    check(tmp_path / "out", descriptor(), range(3), 16)


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_fewer_blocks_than_laid_out(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "out"
    with KvFileSink(path, descriptor(), 4, token_ids=range(16)) as sink:
        fill(sink, descriptor(), [p for p in places(range(3), 4) if p[2] <= kept])
        sink.finish(kept)
    file = check(path, descriptor(), range(3), 4 * kept)
    assert file.metadata["blocks"] == f"0-{kept - 1}"
    assert file.is_part
    with KvFile(path) as again:
        assert again.token_ids() == list(range(4 * kept))


def test_a_part_of_the_layers(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with KvFileSink(path, descriptor(layers=40), 2, layers=range(7, 12), whole_blocks=9) as sink:
        fill(sink, descriptor(layers=40), places(range(7, 12), 2))
        sink.finish(2)
    file = check(path, descriptor(layers=40), range(7, 12), 8)
    assert (file.metadata["layers"], file.metadata["blocks"]) == ("7-11", "0-1")


def test_joint_sections(tmp_path: Path) -> None:
    """O5, N6: a kv Object is K, then V."""
    of = descriptor(v_head_dim=2)
    path = tmp_path / "out"
    with KvFileSink(path, of, 2) as sink:
        for layer in range(3):
            for block in range(2):
                k = section(Component.K, layer, block, 64)
                v = section(Component.V, layer, block, 32)
                sink.commit(Component.KV, layer, block, memoryview(k + v))
        sink.finish(2)
    check(path, of, range(3), 8)


def test_special_values_are_octets(tmp_path: Path) -> None:
    """O5: bf16 NaN, -0.0, infinities and subnormals come back unchanged."""
    of = descriptor(layers=1)
    path = tmp_path / "out"
    with KvFileSink(path, of, 1) as sink:
        for part in (Component.K, Component.V):
            sink.commit(part, 0, 0, SPECIAL * 4)
        sink.finish(1)
    with KvFile(path) as file:
        octets = bytearray(64)
        file.read_tokens_into(Component.V, 0, 0, memoryview(octets))
        assert octets == SPECIAL * 4


def test_a_verified_place_is_not_written_again(tmp_path: Path) -> None:
    """O8: the first verified copy settles a Location."""
    path = tmp_path / "out"
    with KvFileSink(path, descriptor(), 2) as sink:
        fill(sink, descriptor(), places(range(3), 2))
        sink.commit(Component.K, 0, 0, bytes(64))
        sink.finish(2)
    check(path, descriptor(), range(3), 8)


def test_nothing_is_kept_while_sections_lack(tmp_path: Path) -> None:
    """C4: what is missing is never written as zeros."""
    with KvFileSink(tmp_path / "out", descriptor(), 2) as sink:
        fill(sink, descriptor(), places(range(3), 2)[:-1])
        assert (sink.missing(2), sink.missing(1)) == (1, 0)
        with pytest.raises(Incomplete, match="1 sections were not received"):
            sink.finish(2)
        for blocks in (0, 3):
            with pytest.raises(Incomplete, match="expected 1 to 2 blocks"):
                sink.finish(blocks)
    assert names(tmp_path) == []


def test_abort_leaves_an_older_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"old")
    sink = KvFileSink(path, descriptor(), 2)
    fill(sink, descriptor(), places(range(3), 2))
    sink.abort()
    sink.abort()
    assert names(tmp_path) == ["out"]
    assert path.read_bytes() == b"old"


def test_misuse(tmp_path: Path) -> None:
    with KvFileSink(tmp_path / "out", descriptor(), 2, layers=range(1, 2)) as sink:
        with pytest.raises(ValueError, match="64 octets, not 63"):
            sink.commit(Component.K, 1, 0, bytes(63))
        with pytest.raises(ValueError, match="64 octets, not 65"):
            sink.commit(Component.KV, 1, 1, bytes(129))
        with pytest.raises(ValueError, match="give the data"):
            sink.commit(Component.K, 1, 0, None)
        for layer, block in ((0, 0), (2, 0), (1, 2), (1, -1)):
            with pytest.raises(IndexError):
                sink.commit(Component.K, layer, block, bytes(64))


@pytest.mark.parametrize(
    "changes",
    [{"layers": range(0)}, {"layers": range(2, 4)}, {"layers": range(-1, 2)}, {"blocks": 0}],
    ids=str,
)
def test_unusable_parts(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        KvFileSink(tmp_path / "out", descriptor(), **({"blocks": 2} | changes))
    assert names(tmp_path) == []


def test_too_few_token_ids(tmp_path: Path) -> None:
    with KvFileSink(tmp_path / "out", descriptor(), 2, token_ids=range(7)) as sink:
        fill(sink, descriptor(), places(range(3), 2))
        with pytest.raises(UsageError, match="7 given, 8 needed"):
            sink.finish(2)
    assert names(tmp_path) == []


def test_only_the_canonical_layout(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="layout"):
        KvFileSink(tmp_path / "out", descriptor(layout="hdt"), 2)
    with pytest.raises(UsageError, match="layout"):
        write_kv_file(tmp_path / "out", descriptor(layout="hdt"), 4, [])


def test_wide_elements_come_first(tmp_path: Path) -> None:
    """The tensors stay aligned to their elements, as readers of the format expect."""
    of = descriptor(dtype="u8", kv_heads=1, head_dim=3)
    with KvFile(write_cache(tmp_path / "c", of, 5)) as file:
        names = list(file.tensors)
        assert (names[0], names[1:]) == ("token_ids", sorted(names[1:]))
        first = file.tensors["token_ids"]
        assert first.begin == 0


def test_a_writer_that_gives_the_wrong_layers(tmp_path: Path) -> None:
    good = (bytes(64), bytes(64))
    for layers in ([good], [good] * 4):
        with pytest.raises(ValueError, match="zip"):
            write_kv_file(tmp_path / "out", descriptor(), 4, layers)
    with pytest.raises(UsageError, match="layer 0: expected 64 octets, got 63"):
        write_kv_file(tmp_path / "out", descriptor(), 4, [(bytes(64), bytes(63))] * 3)
    with pytest.raises(UsageError, match="tokens: expected 4, got 5"):
        write_kv_file(tmp_path / "out", descriptor(), 4, [good] * 3, token_ids=range(5))
    assert names(tmp_path) == []
