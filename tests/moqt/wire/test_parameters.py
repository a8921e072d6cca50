"""Message Parameters: their encodings, their scopes, FILL_PARAMETERS."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moqt.errors import ProtocolViolation, SessionErrorCode
from moqt.model import GroupOrder, Location
from moqt.wire.filters import InvalidFilter, LocationFilter, RangeFilter
from moqt.wire.parameters import (
    AliasType,
    AuthorizationToken,
    Parameters,
    ParameterType,
    Scope,
    allowed,
    decode_parameters,
    encode_parameters,
)
from moqt.wire.primitives import NeedMoreData, Reader, encode_octets, encode_vi64
from tests.moqt.wire import strategies as our
from tests.moqt.wire.support import MAX, PARAMETER_FIELDS, survives

# The lists of parameters per message, as the draft gives them; the code has the lists per parameter.
_SUBSCRIBE = "02 03 04 06 10 20 21 22 23 25 26 27 28 32 35"
PER_SCOPE = {
    Scope.SUBSCRIBE: _SUBSCRIBE,
    Scope.SUBSCRIBE_OK: "08 09",
    Scope.PUBLISH: "02 03 06 08 09 10 20 21 22",
    Scope.FETCH: "03 0a 20 21 22 25 26 27 28 35",
    Scope.FETCH_OK: "",
    Scope.TRACK_STATUS: "03 35",
    Scope.PUBLISH_NAMESPACE: "03",
    Scope.SUBSCRIBE_NAMESPACE: "03",
    Scope.SUBSCRIBE_TRACKS: _SUBSCRIBE + " 29",
    Scope.PUBLISH_STATE_NOTIFY: "09 10 21",
    Scope.UPDATE_SUBSCRIPTION: "02 03 06 10 20 21 23 25 26 27 28 32",
    Scope.UPDATE_PUBLISH: "03",
    Scope.UPDATE_FETCH: "03 20",
    Scope.UPDATE_PUBLISH_NAMESPACE: "03",
    Scope.UPDATE_SUBSCRIBE_NAMESPACE: "03 34",
    Scope.UPDATE_SUBSCRIBE_TRACKS: "03 10 29 34",
    Scope.PUBLISH_OK: "08",
    Scope.UPDATE_OK: "08 09",
    Scope.TRACK_STATUS_OK: "09",
    Scope.NAMESPACE_OK: "08",
    Scope.FILL: "0a 20 21 22 25 26 27 28",
}
RANGES = (RangeFilter(0, ((3, 5),)),)
PROPERTY_RANGES = (RangeFilter(0, ((3, 5),), 0x3800),)
TOKEN = AuthorizationToken(AliasType.USE_ALIAS, 7)
# Type, value on the wire, the same as a value of ours.
SAMPLES: dict[ParameterType, tuple[str, Any]] = {
    ParameterType.OBJECT_DELIVERY_TIMEOUT: ("812c", 300),
    ParameterType.AUTHORIZATION_TOKEN: ("02 02 07", (TOKEN,)),
    ParameterType.RENDEZVOUS_TIMEOUT: ("00", 0),
    ParameterType.SUBGROUP_DELIVERY_TIMEOUT: ("01", 1),
    ParameterType.EXPIRES: ("ff ffffffffffffffff", MAX),
    ParameterType.LARGEST_OBJECT: ("03 0f", Location(3, 15)),
    ParameterType.FILL_TIMEOUT: ("64", 100),
    ParameterType.FORWARD: ("00", False),
    ParameterType.SUBSCRIBER_PRIORITY: ("ff", 255),
    ParameterType.LOCATION_FILTER: ("05", LocationFilter.next_object()),
    ParameterType.GROUP_ORDER: ("02", GroupOrder.DESCENDING),
    ParameterType.FILL_PARAMETERS: ("03 01 20 09", Parameters(subscriber_priority=9)),
    ParameterType.SUBGROUP_FILTER: ("03 00 03 02", RANGES),
    ParameterType.OBJECTID_FILTER: ("03 00 03 02", RANGES),
    ParameterType.PRIORITY_FILTER: ("03 00 03 02", RANGES),
    ParameterType.OBJECT_PROPERTY_FILTER: ("05 00 b800 03 02", PROPERTY_RANGES),
    ParameterType.TRACK_PROPERTY_FILTER: ("05 00 b800 03 02", PROPERTY_RANGES),
    ParameterType.NEW_GROUP_REQUEST: ("00", 0),
    ParameterType.TRACK_NAMESPACE_PREFIX: ("01 01 61", (b"a",)),
    ParameterType.INCLUDE_PROPERTIES: ("01", True),
}
REPEATABLE = {0x03, 0x25, 0x26, 0x27, 0x28, 0x29}


def decode(octets: str | bytes, scope: Scope) -> Parameters:
    """All of `octets`, which must be exactly one list."""
    reader = Reader(octets if isinstance(octets, bytes) else bytes.fromhex(octets))
    parameters = decode_parameters(reader, scope)
    assert reader.remaining == 0
    return parameters


def one(kind: int, value: str) -> bytes:
    return b"\x01" + encode_vi64(kind) + bytes.fromhex(value)


def test_every_parameter_and_every_scope_is_in_the_tables() -> None:
    assert set(SAMPLES) == set(ParameterType)
    assert set(PER_SCOPE) == set(Scope)
    assert set(PARAMETER_FIELDS) == set(ParameterType.__members__)
    assert list(PARAMETER_FIELDS.values()) == [field.name for field in fields(Parameters)]


@pytest.mark.parametrize("scope", Scope, ids=lambda scope: scope.name)
@pytest.mark.parametrize("kind", ParameterType, ids=lambda kind: kind.name)
def test_every_parameter_in_every_scope(kind: ParameterType, scope: Scope) -> None:
    octets, value = SAMPLES[kind]
    data = one(kind, octets)
    parameters = Parameters(**{PARAMETER_FIELDS[kind.name]: value})
    if f"{kind:02x}" in PER_SCOPE[scope].split():
        assert kind in allowed(scope)
        assert decode(data, scope) == parameters
        assert encode_parameters(parameters, scope) == data
    else:
        assert kind not in allowed(scope)
        with pytest.raises(ProtocolViolation, match=f"does not belong in {scope.name}"):
            decode(data, scope)
        with pytest.raises(ValueError, match=f"{kind.name} does not belong in {scope.name}"):
            encode_parameters(parameters, scope)


@pytest.mark.parametrize("kind", ParameterType, ids=lambda kind: kind.name)
def test_every_truncation_needs_more_or_is_a_violation(kind: ParameterType) -> None:
    scope = next(scope for scope in Scope if kind in allowed(scope))
    data = one(kind, SAMPLES[kind][0])
    for end in range(len(data)):
        with pytest.raises((NeedMoreData, ProtocolViolation)):
            decode(data[:end], scope)


@pytest.mark.parametrize("kind", ParameterType, ids=lambda kind: kind.name)
def test_a_repeated_parameter_is_a_violation_unless_it_may_be(kind: ParameterType) -> None:
    scope = next(scope for scope in Scope if kind in allowed(scope))
    value = bytes.fromhex(SAMPLES[kind][0])
    data = b"\x02" + encode_vi64(kind) + value + b"\x00" + value
    if kind in REPEATABLE:
        expected: type[Exception] = InvalidFilter
        if kind == ParameterType.AUTHORIZATION_TOKEN:
            assert decode(data, scope).authorization_tokens == (TOKEN, TOKEN)
            return
    else:
        expected = ProtocolViolation
    with pytest.raises(expected):
        decode(data, scope)


@pytest.mark.parametrize("scope", Scope, ids=lambda scope: scope.name)
@given(data=st.data())
def test_parameters_round_trip(scope: Scope, data: st.DataObject) -> None:
    parameters = data.draw(our.parameters(scope))
    assert decode(encode_parameters(parameters, scope), scope) == parameters


@pytest.mark.parametrize("kind", [0, 1, 5, 7, 0x0B, 0x24, 0x2A, 0x33, 0x36, 0x9D, MAX])
@pytest.mark.parametrize("scope", [Scope.SUBSCRIBE, Scope.FILL])
def test_an_unknown_parameter_is_a_violation(kind: int, scope: Scope) -> None:
    with pytest.raises(ProtocolViolation, match=f"parameter 0x{kind:x} "):
        decode(one(kind, "00"), scope)


def test_types_beyond_the_largest_integer_are_a_violation() -> None:
    with pytest.raises(ProtocolViolation, match="parameter 0x1000"):
        decode(b"\x02\x20\x01" + encode_vi64(MAX), Scope.SUBSCRIBE)


@pytest.mark.parametrize(
    ("kind", "value"), [(0x10, "02"), (0x22, "00"), (0x22, "03"), (0x35, "02"), (0x35, "ff")]
)
def test_values_outside_their_set_are_a_violation(kind: int, value: str) -> None:
    with pytest.raises(ProtocolViolation):
        decode(one(kind, value), Scope.SUBSCRIBE)


def test_a_faulty_token_is_a_formatting_error() -> None:
    with pytest.raises(ProtocolViolation) as caught:
        decode(one(3, "01 04"), Scope.SUBSCRIBE)
    assert caught.value.code is SessionErrorCode.KEY_VALUE_FORMATTING_ERROR


# -- range filters: faults of the request ----------------------------------------------------------


@pytest.mark.parametrize(
    ("octets", "fault"),
    [
        ("01 27 04 00 00 8100", "at most 255"),
        ("01 28 04 00 03 00 00", "odd"),
        ("01 26 01 00", "no range"),
        ("02 26 02 00 00 00 02 00 05", "same SetID"),
        ("02 26 02 00 00 00 00", "removal"),
        ("01 23 06 01 27 03 00 8100", "at most 255"),
    ],
)
def test_a_filter_fault_refuses_the_request(octets: str, fault: str) -> None:
    with pytest.raises(InvalidFilter, match=fault):
        decode(octets, Scope.SUBSCRIBE)


def test_a_filter_fault_carries_the_other_parameters() -> None:
    with pytest.raises(InvalidFilter) as caught:
        decode("04 03 02 02 07 23 01 00 00 02 00 01 0c 07", Scope.SUBSCRIBE)
    expected = Parameters(
        authorization_tokens=(TOKEN,),
        object_id_filters=(RangeFilter(0, ((1, None),)),),
        new_group_request=7,
    )
    assert caught.value.parameters == expected


def test_a_violation_after_a_filter_fault_wins() -> None:
    with pytest.raises(ProtocolViolation, match="0x36 "):
        decode("02 26 01 00 10 00", Scope.SUBSCRIBE)
    with pytest.raises(NeedMoreData):
        decode("02 26 01 00", Scope.SUBSCRIBE)


@pytest.mark.parametrize(
    "parameters",
    [
        Parameters(object_id_filters=(*RANGES, *RANGES)),
        Parameters(object_id_filters=(*RANGES, RangeFilter(0, ()))),
        Parameters(object_id_filters=PROPERTY_RANGES),
        Parameters(object_property_filters=RANGES),
        Parameters(object_property_filters=(RangeFilter(0, ((0, 1),), 3),)),
        Parameters(priority_filters=(RangeFilter(0, ((0, 256),)),)),
        Parameters(priority_filters=(RangeFilter(0, ((256, None),)),)),
        Parameters(fill=Parameters(priority_filters=(RangeFilter(0, ((0, 256),)),))),
        Parameters(subscriber_priority=256),
        Parameters(rendezvous_timeout=-1),
    ],
)
def test_parameters_that_a_peer_would_refuse_are_not_sent(parameters: Parameters) -> None:
    with pytest.raises(ValueError, match=r".+"):
        encode_parameters(parameters, Scope.SUBSCRIBE)


def test_ranges_are_counted_over_all_filters() -> None:
    assert Parameters().filter_ranges == 0
    parameters = Parameters(
        subgroup_filters=(RangeFilter(0, ((0, 1), (4, None))),),
        object_id_filters=(*RANGES, RangeFilter(1, ((9, 9),))),
        priority_filters=(RangeFilter(0, ()),),
        object_property_filters=PROPERTY_RANGES,
        track_property_filters=PROPERTY_RANGES,
        fill=Parameters(object_id_filters=RANGES),
    )
    assert parameters.filter_ranges == 6


# -- FILL_PARAMETERS -------------------------------------------------------------------------------

ALL = "0a 64  16 03  01 04 00 01 02 03  01 02  03 03 00 00 00  01 03 00 01 02  01 03 00 00 09  01 05 00 b800 00 09"
ALL_PARAMETERS = Parameters(
    fill_timeout=100,
    subscriber_priority=3,
    location_filter=LocationFilter.absolute_range(Location(0, 1), Location(2, 3)),
    group_order=GroupOrder.DESCENDING,
    subgroup_filters=(RangeFilter(0, ((0, 0),)),),
    object_id_filters=(RangeFilter(0, ((1, 3),)),),
    priority_filters=(RangeFilter(0, ((0, 9),)),),
    object_property_filters=(RangeFilter(0, ((0, 9),), 0x3800),),
)
TEN = "26 03 00 00 00" + "".join(f" 00 03 {i:02x} {i:02x} 00" for i in range(1, 10))
TEN_PARAMETERS = Parameters(object_id_filters=tuple(RangeFilter(i, ((i, i),)) for i in range(10)))
FILLS = [
    # block, what it says, whether it is the form that is sent
    ("00", Parameters(), True),
    ("", Parameters(), False),
    ("01 20 09", Parameters(subscriber_priority=9), True),
    ("20 09", Parameters(subscriber_priority=9), False),
    ("0a 00", Parameters(fill_timeout=0), False),
    ("08" + ALL, ALL_PARAMETERS, True),
    (ALL, ALL_PARAMETERS, False),
    ("0a" + TEN, TEN_PARAMETERS, True),
    (TEN, TEN_PARAMETERS, False),
]


def fill(block: str) -> bytes:
    return b"\x01\x23" + encode_octets(bytes.fromhex(block))


@pytest.mark.parametrize(("block", "expected", "sent"), FILLS)
def test_both_forms_of_a_fill_are_read_and_one_is_sent(
    block: str, expected: Parameters, sent: bool
) -> None:
    assert decode(fill(block), Scope.SUBSCRIBE) == Parameters(fill=expected)
    encoded = encode_parameters(Parameters(fill=expected), Scope.SUBSCRIBE)
    assert (encoded == fill(block)) is sent


@pytest.mark.parametrize(("block", "expected", "sent"), FILLS)
def test_every_truncation_of_a_fill(block: str, expected: Parameters, sent: bool) -> None:
    octets = bytes.fromhex(block)
    for end in range(1, len(octets)):
        try:
            decode(fill(octets[:end].hex()), Scope.SUBSCRIBE)
        except (ProtocolViolation, InvalidFilter):
            continue
        # A bare run may end after any parameter, and a count of ten may be the first type of one.
        assert not sent or octets[0] == 0x0A


def test_an_empty_fill_is_a_fill() -> None:
    assert decode("01 23 01 00", Scope.SUBSCRIBE).fill == Parameters()
    assert decode("00", Scope.SUBSCRIBE).fill is None


@pytest.mark.parametrize(
    "block",
    [
        "01",  # a parameter is missing
        "01 20 09 00",  # one octet too many
        "02 20 09",
        "01 03 02 02 07",  # not nestable
        "01 10 01",
        "01 23 01 00",
        "23 00",
        "20",
        "20 09 00 09",  # twice
        "81",
    ],
)
def test_what_is_no_fill_is_a_violation(block: str) -> None:
    with pytest.raises(ProtocolViolation):
        decode(fill(block), Scope.SUBSCRIBE)


def test_octets_behind_a_counted_fill_with_a_filter_fault_are_a_violation() -> None:
    with pytest.raises(ProtocolViolation, match="after the end of fill"):
        decode(fill("01 26 01 00 55"), Scope.SUBSCRIBE)


def test_a_filter_fault_in_either_form_refuses_the_request() -> None:
    for block in ("01 26 01 00", "26 01 00", "0a" + TEN.replace("03 09 09 00", "03 08 09 00")):
        with pytest.raises(InvalidFilter):
            decode(fill(block), Scope.SUBSCRIBE)


def test_a_fill_longer_than_the_message_needs_more() -> None:
    with pytest.raises(NeedMoreData):
        decode("01 23 05 00", Scope.SUBSCRIBE)


def test_parameters_show_what_is_set() -> None:
    assert repr(Parameters()) == "Parameters()"
    assert repr(Parameters(track_namespace_prefix=())) == "Parameters(track_namespace_prefix=())"
    assert repr(Parameters(forward=False, expires=0)) == "Parameters(expires=0, forward=False)"


@pytest.mark.parametrize("scope", [Scope.SUBSCRIBE, Scope.SUBSCRIBE_TRACKS])
def test_mutations_seed_22(scope: Scope) -> None:
    def parse(data: bytes) -> None:
        reader = Reader(data)
        parameters = decode_parameters(reader, scope)
        assert decode(encode_parameters(parameters, scope), scope) == parameters

    corpus = [one(kind, SAMPLES[kind][0]) for kind in sorted(allowed(scope))]
    corpus += [fill(block) for block, _, _ in FILLS]
    everything = {PARAMETER_FIELDS[kind.name]: SAMPLES[kind][1] for kind in allowed(scope)}
    corpus += [encode_parameters(Parameters(**everything), scope)] * 4
    assert survives(parse, corpus, NeedMoreData, ProtocolViolation, InvalidFilter)
