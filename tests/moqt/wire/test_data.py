"""The module that gathers everything about Objects."""

from __future__ import annotations

from moqt.wire import data
from moqt.wire.primitives import Reader
from tests.moqt.wire.support import of_kind


def test_stream_types_are_those_of_the_vectors() -> None:
    (padding,) = of_kind("padding_stream")
    stream_type = int(padding.decoded["stream_type"], 16)
    assert Reader(padding.octets).vi64() == stream_type == data.STREAM_PADDING
    assert stream_type + 1 == data.DATAGRAM_PADDING
    assert {vector.octets[0] for vector in of_kind("fetch_stream")} == {data.STREAM_FETCH}
    assert not data.is_subgroup_type(data.STREAM_FETCH)
    assert not data.is_subgroup_type(data.STREAM_PADDING)


def test_every_exported_name_exists() -> None:
    assert all(hasattr(data, name) for name in data.__all__)
