"""Octets of a lively peer, and what becomes of them on a bad day."""

from __future__ import annotations

import random
from collections.abc import Iterator

from moqt.model import GroupOrder, Location, ObjectHeader
from moqt.wire.data import FetchEncoder, SubgroupEncoder, SubgroupHeader
from moqt.wire.filters import LocationFilter, RangeFilter
from moqt.wire.messages import (
    Fetch,
    FetchOk,
    Goaway,
    Namespace,
    NamespaceDone,
    Publish,
    PublishDone,
    PublishStateNotify,
    RequestOk,
    RequestUpdate,
    Setup,
    SetupOptions,
    Subscribe,
    SubscribeNamespace,
    SubscribeOk,
    encode_message,
)
from moqt.wire.parameters import AliasType, AuthorizationToken, Parameters
from tests.support.cores import TRACK


def streams_of_a_client() -> dict[int, bytes]:
    """What a lively client puts on its streams: a seed for mutations."""
    token = AuthorizationToken(AliasType.REGISTER, 1, 0, b"t")
    fill = Parameters(
        location_filter=LocationFilter.next_object(), group_order=GroupOrder.DESCENDING
    )
    full = Parameters(
        authorization_tokens=(token,),
        forward=True,
        location_filter=LocationFilter.absolute_range(Location(1, 2), Location(3, 4)),
        fill=fill,
        object_id_filters=(RangeFilter(0, ((0, 3), (9, None))),),
    )
    header = SubgroupHeader(9, 1, 2, 3, has_properties=True)
    encoder = SubgroupEncoder(header)
    subgroup = header.encode() + encoder.object(0, 4, properties=((4, 1), (5, b"abc"))) + b"data"
    fetch = FetchEncoder(1)
    fetched = fetch.header + fetch.object(ObjectHeader(Location(0, 0), 3, 0, 1)) + b"abc"
    return {
        2: encode_message(Setup(SetupOptions(path="/p", authority="h:1", max_request_updates=3)))
        + encode_message(Goaway()),
        0: encode_message(Subscribe(0, TRACK, full))
        + encode_message(RequestUpdate(6, Parameters(subscriber_priority=1)), Subscribe),
        4: encode_message(Publish(2, TRACK, 9, Parameters(), ((4, 5), (0x0B, b"\4\1"))))
        + encode_message(PublishDone(2, 1, "bye"), Publish),
        8: encode_message(SubscribeNamespace(4, (b"kv", b"x")))
        + encode_message(
            RequestUpdate(8, Parameters(track_namespace_prefix=(b"kv",))), SubscribeNamespace
        ),
        12: encode_message(Fetch(10, TRACK, Parameters(subscriber_priority=7))),
        1: encode_message(SubscribeOk(9, Parameters(largest_object=Location(2, 2)), ((4, 9),)))
        + encode_message(PublishStateNotify(Parameters(forward=False)))
        + encode_message(PublishDone(2, 1)),
        5: encode_message(FetchOk(True, Location(9, 9))),
        9: encode_message(RequestOk(), SubscribeNamespace)
        + encode_message(Namespace((b"a",)))
        + encode_message(NamespaceDone((b"a",))),
        6: subgroup + encoder.object(7, 0) + encoder.object(9, 0),
        10: fetched,
        14: bytes.fromhex("f0132b3e28000000"),
    }


def mutate(data: bytes, choose: random.Random) -> bytes:
    octets = bytearray(data)
    for _ in range(choose.randint(0, 3)):
        at = choose.randrange(len(octets) + 1)
        match choose.randrange(4):
            case 0:
                octets[at : at + 1] = bytes((choose.randrange(256),))
            case 1:
                del octets[at : at + choose.randint(1, 4)]
            case 2:
                octets[at:at] = choose.randbytes(choose.randint(1, 9))
            case _:
                octets += octets[at : at + 20]
    return bytes(octets)


def pieces(data: bytes, choose: random.Random) -> Iterator[bytes]:
    while data:
        size = choose.choice((1, 2, 5, 1000))
        yield data[:size]
        data = data[size:]
