"""What the tests of the wire share: the vectors, our values in the form of the vectors, and mutations."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moqt.model import EndOfRange, GroupOrder, ObjectHeader, Properties
from moqt.wire import messages as m
from moqt.wire.data import FetchDecoder, SubgroupDecoder, SubgroupHeader
from moqt.wire.filters import LocationFilter, LocationFilterType, RangeFilter
from moqt.wire.parameters import AuthorizationToken, Parameters

VECTORS = Path(__file__).resolve().parents[2] / "vectors"
MAX = 2**64 - 1

REQUESTS: dict[str, type[m.Request]] = {
    "SUBSCRIBE": m.Subscribe,
    "PUBLISH": m.Publish,
    "FETCH": m.Fetch,
    "TRACK_STATUS": m.TrackStatus,
    "PUBLISH_NAMESPACE": m.PublishNamespace,
    "SUBSCRIBE_NAMESPACE": m.SubscribeNamespace,
    "SUBSCRIBE_TRACKS": m.SubscribeTracks,
}
# The shared vectors do not say which request these belong to; their parameters or their notes do.
CONTEXTS: dict[str, dict[str, Any]] = {
    "request_update_refill": {"request": m.Subscribe},
    "request_update_clear_filter": {"request": m.Subscribe},
    "request_update_remove_range_filter": {"request": m.Subscribe},
    "request_update_ns_prefix": {"request": m.SubscribeNamespace},
    "request_ok": {"request": m.PublishNamespace},
    "request_ok_update": {"request": m.Subscribe, "update": True},
    "request_ok_track_status": {"request": m.TrackStatus},
}


@dataclass(frozen=True)
class Vector:
    """One vector of either file; `encodes` is whether our encoder writes these very octets."""

    name: str
    kind: str
    octets: bytes
    decoded: dict[str, Any]
    encodes: bool
    order: GroupOrder
    context: dict[str, Any]


def _load() -> Iterator[Vector]:
    for file in ("moqt22-vectors.json", "moqt22-own-vectors.json"):
        for entry in json.loads((VECTORS / file).read_text("utf-8"))["vectors"]:
            name = entry["name"]
            padded = name.startswith("vi64_nonminimal") or name == "subscribe_fill_bare_form"
            context = dict(CONTEXTS.get(name, {}))
            if "request" in entry:
                context["request"] = REQUESTS[entry["request"]]
                context["by_requester"] = entry.get("by_requester", True)
            yield Vector(
                name=name,
                kind=entry["kind"],
                octets=bytes.fromhex(entry["hex"]),
                decoded=entry["decoded"],
                encodes=entry.get("encode", not padded),
                order=GroupOrder(entry.get("group_order", 1)),
                context=context,
            )


ALL = tuple(_load())


def of_kind(kind: str) -> tuple[Vector, ...]:
    return tuple(vector for vector in ALL if vector.kind == kind)


def split_message(octets: bytes) -> tuple[int, bytes]:
    """Type and body of one framed message."""
    reader = m.MessageReader()
    reader.feed(octets)
    found = reader.next()
    assert found is not None
    assert not reader.pending
    return found


# -- our values in the form of the vectors --------------------------------------------------------


def plain(value: Any) -> Any:
    """Octets as "hex:...", sequences as lists."""
    if isinstance(value, bytes):
        return "hex:" + value.hex()
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


def without_form(value: Any) -> Any:
    """A decoded value without the form of FILL_PARAMETERS, which a receiver does not keep."""
    if isinstance(value, dict):
        return {key: without_form(item) for key, item in value.items() if key != "form"}
    if isinstance(value, list):
        return [without_form(item) for item in value]
    return value


PARAMETER_FIELDS = {
    "OBJECT_DELIVERY_TIMEOUT": "object_delivery_timeout",
    "AUTHORIZATION_TOKEN": "authorization_tokens",
    "RENDEZVOUS_TIMEOUT": "rendezvous_timeout",
    "SUBGROUP_DELIVERY_TIMEOUT": "subgroup_delivery_timeout",
    "EXPIRES": "expires",
    "LARGEST_OBJECT": "largest_object",
    "FILL_TIMEOUT": "fill_timeout",
    "FORWARD": "forward",
    "SUBSCRIBER_PRIORITY": "subscriber_priority",
    "LOCATION_FILTER": "location_filter",
    "GROUP_ORDER": "group_order",
    "FILL_PARAMETERS": "fill",
    "SUBGROUP_FILTER": "subgroup_filters",
    "OBJECTID_FILTER": "object_id_filters",
    "PRIORITY_FILTER": "priority_filters",
    "OBJECT_PROPERTY_FILTER": "object_property_filters",
    "TRACK_PROPERTY_FILTER": "track_property_filters",
    "NEW_GROUP_REQUEST": "new_group_request",
    "TRACK_NAMESPACE_PREFIX": "track_namespace_prefix",
    "INCLUDE_PROPERTIES": "include_properties",
}


def describe_parameters(parameters: Parameters) -> list[Any]:
    described = []
    for name, attribute in PARAMETER_FIELDS.items():
        value = getattr(parameters, attribute)
        if attribute.endswith(("_tokens", "_filters")):
            described += [[name, describe_parameter(one)] for one in value]
        elif value is not None:
            described.append([name, describe_parameter(value)])
    return described


def describe_parameter(value: Any) -> Any:
    match value:
        case Parameters():
            return {"parameters": describe_parameters(value)}
        case LocationFilter():
            return describe_location_filter(value)
        case RangeFilter(ranges=()):
            return {"removed": True}
        case RangeFilter():
            kind = {} if value.property_type is None else {"property_type": value.property_type}
            return {"set_id": value.set_id, **kind, "ranges": plain(value.ranges)}
        case AuthorizationToken():
            return describe_token(value)
        case _:
            return plain(value)


def describe_location_filter(value: LocationFilter) -> dict[str, int]:
    described = {
        "filter_type": value.type,
        "start_group": value.start.group,
        "start_object": value.start.object,
        "end_group_delta": value.end_group_delta,
        "end_object": value.end_object,
    }
    kept = {
        LocationFilterType.NONE: 1,
        LocationFilterType.RELATIVE_START: 2,
        LocationFilterType.ABSOLUTE_START: 3,
        LocationFilterType.ABSOLUTE_START_GROUP_END: 4,
        LocationFilterType.ABSOLUTE_RANGE: 5,
        LocationFilterType.NEXT_OBJECT: 1,
    }
    return dict(list(described.items())[: kept[value.type]])


def describe_token(token: AuthorizationToken) -> dict[str, Any]:
    described: dict[str, Any] = {"alias_type": token.alias_type}
    if token.alias is not None:
        described["alias"] = token.alias
    if token.token_type is not None:
        described |= {"token_type": token.token_type, "value": plain(token.value)}
    return described


def describe_options(options: m.SetupOptions) -> list[Any]:
    pairs: list[tuple[int, Any]] = [
        (0x03, token.encode()) for token in options.authorization_tokens
    ]
    for kind, text in (
        (0x01, options.path),
        (0x05, options.authority),
        (0x07, options.implementation),
    ):
        if text is not None:
            pairs.append((kind, text.encode()))
    limits = {
        0x04: options.max_auth_token_cache_size,
        0x06: options.max_filter_ranges,
        0x08: options.max_request_updates,
    }
    pairs += [(kind, limit) for kind, limit in limits.items() if limit]
    pairs.sort(key=lambda pair: pair[0])
    return [plain(pair) for pair in (*pairs, *options.unknown)]


def describe_message(message: m.Message) -> dict[str, Any]:
    """A message as the vectors describe it, without type and length."""
    described: dict[str, Any] = {}
    for name in message.__dataclass_fields__:
        value = getattr(message, name)
        match name:
            case "track":
                described |= {"namespace": plain(value.namespace), "name": plain(value.name)}
            case "prefix":
                described["namespace"] = plain(value)
            case "parameters":
                described[name] = describe_parameters(value)
            case "options":
                described[name] = describe_options(value)
            case "uri" | "reason":
                described[name] = plain(value.encode())
            case "redirect":
                if value is not None:
                    track = {
                        "namespace": plain(value.track.namespace),
                        "name": plain(value.track.name),
                    }
                    described[name] = {"uri": plain(value.uri.encode()), **track}
            case _:
                described[name] = plain(value)
    return described


# -- data streams ---------------------------------------------------------------------------------


@dataclass
class Recorder:
    """A sink that keeps all it is told: headers, markers, and Objects as [header, payload, ended]."""

    events: list[Any] = field(default_factory=list)

    def subgroup_header(self, header: SubgroupHeader) -> None:
        self.events.append(header)

    def fetch_header(self, request_id: int) -> None:
        self.events.append(request_id)

    def object_begin(self, header: ObjectHeader) -> None:
        assert not self.inside
        self.events.append([header, b"", False])

    def payload(self, data: memoryview) -> None:
        assert self.inside
        assert len(data) > 0
        self.events[-1][1] += bytes(data)

    def object_end(self) -> None:
        assert self.inside
        item = self.events[-1]
        assert len(item[1]) == item[0].payload_length
        item[2] = True

    def end_of_range(self, marker: EndOfRange) -> None:
        assert not self.inside
        self.events.append(marker)

    @property
    def inside(self) -> bool:
        return bool(self.events) and isinstance(self.events[-1], list) and not self.events[-1][2]


def stream_decoder(vector: Vector, sink: Recorder) -> SubgroupDecoder | FetchDecoder:
    if vector.kind == "subgroup_stream":
        return SubgroupDecoder(sink)
    return FetchDecoder(sink, vector.order)


def decode_stream(vector: Vector, pieces: list[bytes]) -> list[Any]:
    """Everything a whole stream tells its sink."""
    recorder = Recorder()
    decoder = stream_decoder(vector, recorder)
    for piece in pieces:
        decoder.feed(piece)
    decoder.finish()
    return recorder.events


def describe_properties(properties: Properties) -> Any:
    return plain(properties)


# -- mutations ------------------------------------------------------------------------------------

SEED = 22
ROUNDS = 50_000


def mutations(corpus: list[bytes], seed: int = SEED, rounds: int = ROUNDS) -> Iterator[bytes]:
    """`rounds` octet strings near those of `corpus`: one to three edits each."""
    rng = random.Random(seed)
    draw = rng.random
    values = (0x00, 0x7F, 0x80, 0xFF, 0x01, 0xFE)
    for index in range(rounds):
        data = bytearray(corpus[index % len(corpus)])
        for _ in range(1 + int(draw() * 3)):
            if not data:
                break
            at = int(draw() * len(data))
            match int(draw() * 6):
                case 0:
                    data[at] ^= 1 << int(draw() * 8)
                case 1:
                    data[at] = int(draw() * 256)
                case 2:
                    data[at] = values[int(draw() * 6)]
                case 3:
                    del data[at : at + 1 + int(draw() * 3)]
                case 4:
                    data[at:at] = data[at : at + 1 + int(draw() * 8)]
                case 5:
                    data[at:at] = bytes((int(draw() * 256),))
        yield bytes(data)


def survives(
    parse: Callable[[bytes], object], corpus: list[bytes], *expected: type[Exception]
) -> int:
    """Parses mutations of `corpus`; returns how many were accepted.

    Anything but `expected` fails with the seed and the octets.
    """
    accepted = 0
    for data in mutations(corpus):
        try:
            parse(data)
        except expected:
            continue
        except BaseException as error:
            error.add_note(f"seed {SEED}, octets {data.hex()}")
            raise
        accepted += 1
    return accepted
