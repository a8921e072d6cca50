"""kvcs.formats.numpy: caches in arrays and buffers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvcs.errors import Incomplete, UsageError
from kvcs.formats.base import Sink, Source
from kvcs.formats.numpy import ArraySink, ArraySource, allocate, octets_of, storage_dtype
from kvcs.kvsp.descriptor import ELEMENT_SIZES
from kvcs.payload import Component
from tests.support.caches import descriptor, layers, section, tensor

PARTS = (Component.K, Component.V)


def arrays(tokens: int) -> tuple[list[Any], list[Any]]:
    """A small cache as uint16 arrays."""
    pairs = layers(descriptor(), tokens)
    k, v = zip(*pairs, strict=True)
    return (
        [np.frombuffer(octets, "<u2").reshape(tokens, 2, 4) for octets in k],
        [np.frombuffer(octets, "<u2").reshape(tokens, 2, 4) for octets in v],
    )


def test_source() -> None:
    """O5: sections are slices of the arrays; a partial last block is left out."""
    source: Source = ArraySource(descriptor(), *arrays(10))
    assert (source.layers, source.tokens) == (3, 8)
    for part in PARTS:
        for layer in range(3):
            for block in range(2):
                expected = section(part, layer, block, 64)
                assert source.read_block(part, layer, block) == expected
                target = memoryview(bytearray(64))
                source.read_into(part, layer, block, target)
                assert target == expected
    source.check_unchanged()


def test_source_of_buffers() -> None:
    k, v = zip(*layers(descriptor(), 4), strict=True)
    source = ArraySource(descriptor(), [bytearray(one) for one in k], list(v))
    assert source.read_block(Component.K, 2, 0) == section(Component.K, 2, 0, 64)
    block = source.read_block(Component.K, 2, 0)
    assert isinstance(block, memoryview)
    assert block.readonly


def test_sink_receives_in_place() -> None:
    k, v = allocate(descriptor(), 8)
    target = ArraySink(descriptor(), k, v)
    sink: Sink = target
    assert target.blocks == 2
    for part in PARTS:
        for layer in range(3):
            for block in range(2):
                place = sink.destination(part, layer, block)
                assert place is not None
                place[:] = section(part, layer, block, 64)
                sink.commit(part, layer, block, None)
                assert sink.destination(part, layer, block) is None
    sink.finish(2)
    sink.abort()
    for layer in range(3):
        assert k[layer].tobytes() == tensor(descriptor(), Component.K, layer, 8)
        assert v[layer].tobytes() == tensor(descriptor(), Component.V, layer, 8)


def test_sink_copies_once() -> None:
    """O8: a verified place is never written again."""
    k, v = allocate(descriptor(), 4)
    sink = ArraySink(descriptor(), k, v)
    sink.commit(Component.K, 0, 0, b"a" * 64)
    sink.commit(Component.K, 0, 0, b"b" * 64)
    assert k[0].tobytes() == b"a" * 64


def test_joint_sections() -> None:
    """O5, N6: K, then V; there is no single place to receive into."""
    of = descriptor(v_head_dim=2)
    k, v = allocate(of, 4)
    sink = ArraySink(of, k, v)
    assert sink.destination(Component.KV, 0, 0) is None
    sink.commit(Component.KV, 0, 0, b"k" * 64 + b"v" * 32)
    assert (k[0].tobytes(), v[0].tobytes()) == (b"k" * 64, b"v" * 32)
    assert sink.is_committed(0, 1)
    with pytest.raises(ValueError, match="give the data"):
        sink.commit(Component.KV, 1, 0, None)


def test_a_layer_counts_when_it_is_whole() -> None:
    """C7: every section of K and V."""
    k, v = allocate(descriptor(), 8, 1)
    sink = ArraySink(descriptor(), k, v, layers=range(1, 2))
    sink.commit(Component.K, 1, 0, bytes(64))
    sink.commit(Component.K, 1, 1, bytes(64))
    sink.commit(Component.V, 1, 0, bytes(64))
    assert sink.is_committed(1, 1)
    assert not sink.is_committed(1, 2)
    sink.finish(1)
    with pytest.raises(Incomplete, match="1 layers were not received in full, the first is 1"):
        sink.finish(2)


def test_places_outside() -> None:
    sink = ArraySink(descriptor(), *allocate(descriptor(), 8, 1), layers=range(1, 2))
    for layer, block in ((0, 0), (2, 0), (1, 2), (1, -1)):
        with pytest.raises(IndexError):
            sink.destination(Component.K, layer, block)
        with pytest.raises(IndexError):
            sink.commit(Component.K, layer, block, bytes(64))


SPECIAL = (0x7FC0, 0x7F81, 0xFFFF, 0x8000, 0x7F80, 0xFF80, 0x0001, 0x807F)


def test_bf16_is_never_converted() -> None:
    """O5: NaNs, -0.0, infinities and subnormals are octets like any other."""
    of = descriptor(layers=1)
    array = np.array(SPECIAL * 4, "<u2").reshape(4, 2, 4)
    source = ArraySource(of, [array], [array])
    k, v = allocate(of, 4)
    sink = ArraySink(of, k, v)
    for part in PARTS:
        sink.commit(part, 0, 0, source.read_block(part, 0, 0))
    assert k[0].tobytes() == v[0].tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", ELEMENT_SIZES)
def test_storage(dtype: str) -> None:
    assert storage_dtype(dtype).itemsize == ELEMENT_SIZES[dtype]
    k, v = allocate(descriptor(dtype=dtype, v_head_dim=3), 5)
    assert (len(k), k[0].shape, v[2].shape) == (3, (5, 2, 4), (5, 2, 3))


def frozen(tokens: int) -> list[Any]:
    return [np.frombuffer(bytes(16 * tokens), "<u2") for _ in range(3)]


@pytest.mark.parametrize(
    ("k", "v", "text"),
    [
        (allocate(descriptor(), 4)[0][:2], allocate(descriptor(), 4)[1], "expected 3 of k, got 2"),
        (allocate(descriptor(), 4)[0], [], "expected 3 of v, got 0"),
        ([bytearray(63)] * 3, [bytearray(64)] * 3, "63 octets, not a multiple of 16"),
        ([bytearray(64)] * 3, [bytearray(80)] * 3, "differ in tokens"),
        (frozen(4), frozen(4), "writable"),
    ],
)
def test_unusable_arrays(k: list[Any], v: list[Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        ArraySink(descriptor(), k, v)


def test_octets_in_another_order() -> None:
    square = np.zeros((4, 4), "<u2")
    assert len(octets_of(square)) == 32
    for array in (square[:, :2], square.T[1:]):
        with pytest.raises(UsageError, match="C-contiguous"):
            octets_of(array)
    with pytest.raises(UsageError, match="little-endian"):
        octets_of(np.zeros(4, ">u2"))
    with pytest.raises(UsageError, match="C-contiguous"):
        octets_of(memoryview(bytes(8))[::2])
