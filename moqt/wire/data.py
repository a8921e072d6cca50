"""Everything that carries Objects: subgroup streams, fetch streams and datagrams."""

from __future__ import annotations

from moqt.wire.datagrams import ObjectDatagram, decode_datagram, encode_datagram
from moqt.wire.fetches import STREAM_FETCH, FetchDecoder, FetchEncoder
from moqt.wire.streams import DATAGRAM_PADDING, STREAM_PADDING, ObjectSink
from moqt.wire.subgroups import (
    SubgroupDecoder,
    SubgroupEncoder,
    SubgroupHeader,
    is_subgroup_type,
)

__all__ = [
    "DATAGRAM_PADDING",
    "STREAM_FETCH",
    "STREAM_PADDING",
    "FetchDecoder",
    "FetchEncoder",
    "ObjectDatagram",
    "ObjectSink",
    "SubgroupDecoder",
    "SubgroupEncoder",
    "SubgroupHeader",
    "decode_datagram",
    "encode_datagram",
    "is_subgroup_type",
]
