"""Message Parameters: one table says how each is encoded and where it may appear (draft-22).

On the wire: Number of Parameters, then that many of Type Delta and Value. The types ascend. There is no
way to skip a type that is not known, so an unknown, misplaced or repeated one closes the session.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import Enum, IntEnum, auto
from typing import Any, NamedTuple

from moqt.errors import ProtocolViolation
from moqt.model import MAX_VI64, GroupOrder, Location, TrackNamespace
from moqt.wire import fields
from moqt.wire.fields import Field
from moqt.wire.filters import (
    InvalidFilter,
    LocationFilter,
    RangeFilter,
    decode_location_filter,
    decode_range_filter,
    filter_conflict,
)
from moqt.wire.primitives import NeedMoreData, Reader, encode_octets, encode_vi64
from moqt.wire.tokens import AliasType, AuthorizationToken, decode_token

__all__ = [
    "NO_PARAMETERS",
    "AliasType",
    "AuthorizationToken",
    "ParameterType",
    "Parameters",
    "Scope",
    "allowed",
    "decode_parameters",
    "encode_parameters",
]


class ParameterType(IntEnum):
    """The registry of message parameters."""

    OBJECT_DELIVERY_TIMEOUT = 0x02
    AUTHORIZATION_TOKEN = 0x03
    RENDEZVOUS_TIMEOUT = 0x04
    SUBGROUP_DELIVERY_TIMEOUT = 0x06
    EXPIRES = 0x08
    LARGEST_OBJECT = 0x09
    FILL_TIMEOUT = 0x0A
    FORWARD = 0x10
    SUBSCRIBER_PRIORITY = 0x20
    LOCATION_FILTER = 0x21
    GROUP_ORDER = 0x22
    FILL_PARAMETERS = 0x23
    SUBGROUP_FILTER = 0x25
    OBJECTID_FILTER = 0x26
    PRIORITY_FILTER = 0x27
    OBJECT_PROPERTY_FILTER = 0x28
    TRACK_PROPERTY_FILTER = 0x29
    NEW_GROUP_REQUEST = 0x32
    TRACK_NAMESPACE_PREFIX = 0x34
    INCLUDE_PROPERTIES = 0x35


class Scope(Enum):
    """Every context in which parameters appear.

    UPDATE_x is the REQUEST_UPDATE of x by its requester; UPDATE_SUBSCRIPTION that of a SUBSCRIBE, or of a
    PUBLISH by its subscriber. NAMESPACE_OK is the REQUEST_OK of PUBLISH_NAMESPACE, SUBSCRIBE_NAMESPACE and
    SUBSCRIBE_TRACKS. FILL is the inside of FILL_PARAMETERS.
    """

    SUBSCRIBE = auto()
    SUBSCRIBE_OK = auto()
    PUBLISH = auto()
    FETCH = auto()
    FETCH_OK = auto()
    TRACK_STATUS = auto()
    PUBLISH_NAMESPACE = auto()
    SUBSCRIBE_NAMESPACE = auto()
    SUBSCRIBE_TRACKS = auto()
    PUBLISH_STATE_NOTIFY = auto()
    UPDATE_SUBSCRIPTION = auto()
    UPDATE_PUBLISH = auto()
    UPDATE_FETCH = auto()
    UPDATE_PUBLISH_NAMESPACE = auto()
    UPDATE_SUBSCRIBE_NAMESPACE = auto()
    UPDATE_SUBSCRIBE_TRACKS = auto()
    PUBLISH_OK = auto()
    UPDATE_OK = auto()
    TRACK_STATUS_OK = auto()
    NAMESPACE_OK = auto()
    FILL = auto()

    # The default hashes the name through Python; scopes are looked up once per parameter.
    __hash__ = object.__hash__


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Parameters:
    """The parameters of one message. None or () means absent; time-outs are in milliseconds."""

    object_delivery_timeout: int | None = None
    authorization_tokens: tuple[AuthorizationToken, ...] = ()
    rendezvous_timeout: int | None = None
    subgroup_delivery_timeout: int | None = None
    expires: int | None = None
    largest_object: Location | None = None
    fill_timeout: int | None = None
    forward: bool | None = None
    subscriber_priority: int | None = None
    location_filter: LocationFilter | None = None
    group_order: GroupOrder | None = None
    fill: Parameters | None = None
    subgroup_filters: tuple[RangeFilter, ...] = ()
    object_id_filters: tuple[RangeFilter, ...] = ()
    priority_filters: tuple[RangeFilter, ...] = ()
    object_property_filters: tuple[RangeFilter, ...] = ()
    track_property_filters: tuple[RangeFilter, ...] = ()
    new_group_request: int | None = None
    track_namespace_prefix: TrackNamespace | None = None
    include_properties: bool | None = None

    def __repr__(self) -> str:
        """Only what is set: most of the fields of most messages are not."""
        values = ((f.name, f.default, getattr(self, f.name)) for f in dataclasses.fields(self))
        given = (f"{name}={value!r}" for name, default, value in values if value != default)
        return f"Parameters({', '.join(given)})"

    @property
    def filter_ranges(self) -> int:
        """Ranges in all range filters, what MAX_FILTER_RANGES bounds; those of `fill` not counted."""
        filters = (
            *self.subgroup_filters,
            *self.object_id_filters,
            *self.priority_filters,
            *self.object_property_filters,
            *self.track_property_filters,
        )
        return sum(len(f.ranges) for f in filters)


NO_PARAMETERS = Parameters()
"""What most messages carry."""


def _range_filter(
    *, has_property_type: bool = False, largest: int = MAX_VI64
) -> Field[RangeFilter]:
    def encode(value: RangeFilter) -> bytes:
        if value.ranges:
            if (value.property_type is not None) is not has_property_type:
                raise ValueError("property filters, and only they, have a property type")
            if has_property_type and value.property_type is not None and value.property_type % 2:
                raise ValueError(f"property type 0x{value.property_type:x} is odd")
            if max(last or first for first, last in value.ranges) > largest:
                raise ValueError(f"filter values go up to {largest}")
        return value.encode()

    def decode(reader: Reader) -> RangeFilter:
        return decode_range_filter(reader, has_property_type=has_property_type, largest=largest)

    return Field(encode, decode)


def _encode_fill(fill: Parameters) -> bytes:
    return encode_octets(encode_parameters(fill, Scope.FILL))


def _decode_fill(reader: Reader) -> Parameters:
    """Accepts a counted block and a bare run; senders disagree on which one the draft means.

    A first integer below the smallest type of the scope is a count. Otherwise it is a count if the block
    then ends where its Length says, and else the first type of a bare run.
    """
    inner = reader.sub(reader.vi64())
    if not inner.remaining:
        return NO_PARAMETERS
    start = inner.position
    try:
        certain = inner.vi64() < ParameterType.FILL_TIMEOUT
    except NeedMoreData:
        raise ProtocolViolation("fill ends inside a field") from None
    inner.position = start
    try:
        return fields.decode_whole(inner, lambda r: decode_parameters(r, Scope.FILL), "fill")
    except ProtocolViolation:
        if certain:
            raise
    except InvalidFilter:
        if not inner.remaining:
            raise
        if certain:
            raise ProtocolViolation("octets after the end of fill") from None
    inner.position = start
    return fields.decode_whole(inner, lambda r: _decode_list(r, Scope.FILL, None), "fill")


_TOKEN: Field[AuthorizationToken] = Field(
    lambda token: encode_octets(token.encode()),
    lambda reader: decode_token(reader.sub(reader.vi64())),
)
_LOCATION_FILTER = Field(LocationFilter.encode, decode_location_filter)
_FILL = Field(_encode_fill, _decode_fill)
_RANGES = _range_filter()
_PRIORITY_RANGES = _range_filter(largest=255)
_PROPERTY_RANGES = _range_filter(has_property_type=True)


class _Row(NamedTuple):
    type: ParameterType
    field: str
    value: Field[Any]
    scopes: frozenset[Scope]
    repeatable: bool = False


_ALL_UPDATES = (
    "UPDATE_SUBSCRIPTION UPDATE_PUBLISH UPDATE_FETCH UPDATE_PUBLISH_NAMESPACE"
    " UPDATE_SUBSCRIBE_NAMESPACE UPDATE_SUBSCRIBE_TRACKS"
)
_SETTINGS = "SUBSCRIBE PUBLISH UPDATE_SUBSCRIPTION SUBSCRIBE_TRACKS"
_SELECTING = "SUBSCRIBE FETCH UPDATE_SUBSCRIPTION SUBSCRIBE_TRACKS FILL"
_REPEATABLE = True


def _row(
    kind: ParameterType, field: str, value: Field[Any], scopes: str, repeatable: bool = False
) -> _Row:
    return _Row(kind, field, value, frozenset(Scope[name] for name in scopes.split()), repeatable)


_P = ParameterType
# fmt: off
_TABLE = (
    _row(_P.OBJECT_DELIVERY_TIMEOUT, "object_delivery_timeout", fields.VI64, _SETTINGS),
    _row(_P.AUTHORIZATION_TOKEN, "authorization_tokens", _TOKEN,
         "SUBSCRIBE PUBLISH FETCH TRACK_STATUS PUBLISH_NAMESPACE SUBSCRIBE_NAMESPACE SUBSCRIBE_TRACKS "
         + _ALL_UPDATES, _REPEATABLE),
    _row(_P.RENDEZVOUS_TIMEOUT, "rendezvous_timeout", fields.VI64, "SUBSCRIBE SUBSCRIBE_TRACKS"),
    _row(_P.SUBGROUP_DELIVERY_TIMEOUT, "subgroup_delivery_timeout", fields.VI64, _SETTINGS),
    _row(_P.EXPIRES, "expires", fields.VI64,
         "SUBSCRIBE_OK PUBLISH PUBLISH_OK UPDATE_OK NAMESPACE_OK"),
    _row(_P.LARGEST_OBJECT, "largest_object", fields.LOCATION,
         "SUBSCRIBE_OK PUBLISH UPDATE_OK TRACK_STATUS_OK PUBLISH_STATE_NOTIFY"),
    _row(_P.FILL_TIMEOUT, "fill_timeout", fields.VI64, "FETCH FILL"),
    _row(_P.FORWARD, "forward", fields.FLAG,
         _SETTINGS + " UPDATE_SUBSCRIBE_TRACKS PUBLISH_STATE_NOTIFY"),
    _row(_P.SUBSCRIBER_PRIORITY, "subscriber_priority", fields.U8,
         _SETTINGS + " FETCH UPDATE_FETCH FILL"),
    _row(_P.LOCATION_FILTER, "location_filter", _LOCATION_FILTER,
         _SETTINGS + " FETCH PUBLISH_STATE_NOTIFY FILL"),
    _row(_P.GROUP_ORDER, "group_order", fields.GROUP_ORDER,
         "SUBSCRIBE PUBLISH SUBSCRIBE_TRACKS FETCH FILL"),
    _row(_P.FILL_PARAMETERS, "fill", _FILL, "SUBSCRIBE UPDATE_SUBSCRIPTION SUBSCRIBE_TRACKS"),
    _row(_P.SUBGROUP_FILTER, "subgroup_filters", _RANGES, _SELECTING, _REPEATABLE),
    _row(_P.OBJECTID_FILTER, "object_id_filters", _RANGES, _SELECTING, _REPEATABLE),
    _row(_P.PRIORITY_FILTER, "priority_filters", _PRIORITY_RANGES, _SELECTING, _REPEATABLE),
    _row(_P.OBJECT_PROPERTY_FILTER, "object_property_filters", _PROPERTY_RANGES, _SELECTING,
         _REPEATABLE),
    _row(_P.TRACK_PROPERTY_FILTER, "track_property_filters", _PROPERTY_RANGES,
         "SUBSCRIBE_TRACKS UPDATE_SUBSCRIBE_TRACKS", _REPEATABLE),
    _row(_P.NEW_GROUP_REQUEST, "new_group_request", fields.VI64,
         "SUBSCRIBE UPDATE_SUBSCRIPTION SUBSCRIBE_TRACKS"),
    _row(_P.TRACK_NAMESPACE_PREFIX, "track_namespace_prefix", fields.NAMESPACE,
         "UPDATE_SUBSCRIBE_NAMESPACE UPDATE_SUBSCRIBE_TRACKS"),
    _row(_P.INCLUDE_PROPERTIES, "include_properties", fields.FLAG,
         "SUBSCRIBE TRACK_STATUS FETCH SUBSCRIBE_TRACKS"),
)
# fmt: on
_ROWS: dict[int, _Row] = {row.type: row for row in _TABLE}
_FILTERS = tuple(row.field for row in _TABLE if row.field.endswith("_filters"))


def allowed(scope: Scope) -> frozenset[ParameterType]:
    """The parameters that may appear in `scope`."""
    return frozenset(row.type for row in _TABLE if scope in row.scopes)


def encode_parameters(parameters: Parameters, scope: Scope) -> bytes:
    """Number of Parameters and the parameters. ValueError for one that `scope` does not allow."""
    parts = []
    previous = 0
    for row in _TABLE:
        value = getattr(parameters, row.field)
        values = value if row.repeatable else () if value is None else (value,)
        if not values:
            continue
        if scope not in row.scopes:
            raise ValueError(f"{row.type.name} does not belong in {scope.name}")
        for one in values:
            parts.append(encode_vi64(row.type - previous) + row.value.encode(one))
            previous = row.type
    conflict = _filter_conflict(parameters)
    if conflict:
        raise ValueError(conflict)
    return encode_vi64(len(parts)) + b"".join(parts)


def decode_parameters(reader: Reader, scope: Scope) -> Parameters:
    """Reads a counted list of parameters.

    InvalidFilter comes after the whole list was read, so that a graver fault wins, and carries the rest.
    """
    return _decode_list(reader, scope, reader.vi64())


def _decode_list(reader: Reader, scope: Scope, count: int | None) -> Parameters:
    """Reads `count` parameters, or all that `reader` holds when there is no count."""
    values: dict[str, Any] = {}
    fault: InvalidFilter | None = None
    kind = 0
    while reader.remaining if count is None else count:
        delta = reader.vi64()
        kind += delta
        row = _ROWS.get(kind)
        if row is None or scope not in row.scopes:
            raise ProtocolViolation(f"parameter 0x{kind:x} does not belong in {scope.name}")
        if not (delta or row.repeatable):
            raise ProtocolViolation(f"{row.type.name} twice")
        try:
            value = row.value.decode(reader)
        except InvalidFilter as error:
            fault = fault or error
        else:
            values[row.field] = (*values.get(row.field, ()), value) if row.repeatable else value
        if count is not None:
            count -= 1
    parameters = Parameters(**values)
    if fault is None and (conflict := _filter_conflict(parameters)):
        fault = InvalidFilter(conflict)
    if fault is not None:
        fault.parameters = parameters
        raise fault
    return parameters


def _filter_conflict(parameters: Parameters) -> str | None:
    conflicts = (filter_conflict(getattr(parameters, name)) for name in _FILTERS)
    return next(filter(None, conflicts), None)
