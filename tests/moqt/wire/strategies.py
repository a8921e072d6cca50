"""Hypothesis strategies for everything the wire carries."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from moqt.model import (
    EndOfRange,
    FullTrackName,
    GroupOrder,
    Location,
    ObjectHeader,
    Properties,
    RangeKind,
)
from moqt.wire import messages as m
from moqt.wire.filters import LocationFilter, LocationFilterType, RangeFilter
from moqt.wire.parameters import AliasType, AuthorizationToken, Parameters, Scope
from moqt.wire.parameters import allowed as allowed_in
from tests.moqt.wire.support import MAX, PARAMETER_FIELDS

EDGES = [0, 1, 127, 128, 16383, 16384, 2**32, 2**56 - 1, 2**56, MAX - 1, MAX]


def integers(largest: int = MAX) -> st.SearchStrategy[int]:
    edges = [edge for edge in EDGES if edge <= largest]
    return st.one_of(
        st.integers(0, min(300, largest)), st.sampled_from(edges), st.integers(0, largest)
    )


locations = st.builds(Location, integers(), integers())
namespaces = st.lists(st.binary(min_size=1, max_size=40), max_size=32).map(tuple)
tracks = st.builds(FullTrackName, namespaces, st.binary(max_size=60))
octets = st.integers(0, 255)


@st.composite
def location_filters(draw: st.DrawFn) -> LocationFilter:
    kind = draw(st.sampled_from(LocationFilterType))
    group, first, last = draw(integers()), draw(integers()), draw(integers())
    values: list[Any] = [Location(group, first), draw(integers(MAX - group)), last]
    match kind:
        case LocationFilterType.NONE | LocationFilterType.NEXT_OBJECT:
            return LocationFilter(kind)
        case LocationFilterType.RELATIVE_START:
            return LocationFilter(kind, Location(group, 0))
        case LocationFilterType.ABSOLUTE_START:
            return LocationFilter(kind, values[0])
        case LocationFilterType.ABSOLUTE_START_GROUP_END:
            return LocationFilter(kind, *values[:2])
    return LocationFilter(kind, *values)


@st.composite
def range_filters(
    draw: st.DrawFn, *, has_property_type: bool | None = None, largest: int = MAX
) -> RangeFilter:
    if draw(st.integers(0, 9)) == 0:
        return RangeFilter(0, ())
    points = sorted(draw(st.lists(integers(largest), min_size=1, max_size=9)))
    pairs: list[tuple[int, int | None]] = list(zip(points[::2], points[1::2], strict=False))
    if len(points) % 2:
        pairs.append((points[-1], None))
    if has_property_type is None:
        has_property_type = draw(st.booleans())
    kind = draw(integers(MAX // 2)) * 2 if has_property_type else None
    return RangeFilter(draw(octets), tuple(pairs), kind)


def filter_sets(**options: Any) -> st.SearchStrategy[tuple[RangeFilter, ...]]:
    """Several filters of one kind that do not conflict."""
    one = range_filters(**options)
    several = st.lists(
        one.filter(lambda f: bool(f.ranges)),
        max_size=4,
        unique_by=lambda f: (f.set_id, f.property_type),
    )
    return st.one_of(one.map(lambda f: (f,)), several.map(tuple))


@st.composite
def tokens(draw: st.DrawFn) -> AuthorizationToken:
    kind = draw(st.sampled_from(AliasType))
    alias = None if kind is AliasType.USE_VALUE else draw(integers())
    if kind in (AliasType.DELETE, AliasType.USE_ALIAS):
        return AuthorizationToken(kind, alias)
    return AuthorizationToken(kind, alias, draw(integers()), draw(st.binary(max_size=50)))


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "authorization_tokens": st.lists(tokens(), max_size=3).map(tuple),
    "largest_object": locations,
    "forward": st.booleans(),
    "subscriber_priority": octets,
    "location_filter": location_filters(),
    "group_order": st.sampled_from(GroupOrder),
    "fill": st.deferred(lambda: parameters(Scope.FILL)),
    "subgroup_filters": filter_sets(has_property_type=False),
    "object_id_filters": filter_sets(has_property_type=False),
    "priority_filters": filter_sets(has_property_type=False, largest=255),
    "object_property_filters": filter_sets(has_property_type=True),
    "track_property_filters": filter_sets(has_property_type=True),
    "track_namespace_prefix": namespaces,
    "include_properties": st.booleans(),
}


def parameters(scope: Scope) -> st.SearchStrategy[Parameters]:
    """Parameters that may appear in `scope`."""
    names = [PARAMETER_FIELDS[kind.name] for kind in sorted(allowed_in(scope))]
    optional = {name: VALUES.get(name, integers()) for name in names}
    return st.fixed_dictionaries({}, optional=optional).map(lambda values: Parameters(**values))


def properties(*, max_size: int = 6) -> st.SearchStrategy[Properties]:
    """Key-Value-Pairs in the order they are sent."""
    even = st.tuples(integers(MAX // 2).map(lambda kind: kind * 2), integers())
    odd = st.tuples(integers(MAX // 2).map(lambda kind: kind * 2 + 1), st.binary(max_size=40))
    pairs = st.lists(st.one_of(even, odd), max_size=max_size)
    return pairs.map(lambda found: tuple(sorted(found, key=lambda pair: pair[0])))


texts = st.text(max_size=60)
known_options = {0x01, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08}
options = st.builds(
    m.SetupOptions,
    st.none() | texts,
    st.lists(tokens(), max_size=2).map(tuple),
    integers(),
    st.none() | texts,
    integers(),
    st.none() | texts,
    integers(),
    properties().map(lambda found: tuple(pair for pair in found if pair[0] not in known_options)),
)

request_errors = st.builds(
    m.RequestError, integers().filter(lambda code: code != 0x34), integers(), texts
)
redirects = st.builds(
    m.RequestError,
    st.just(0x34),
    integers(),
    texts,
    st.builds(m.Redirect, texts, tracks),
)

# Each message with the context that it is encoded and decoded in.
Framed = tuple[m.Message, dict[str, Any]]
_PLAIN: list[st.SearchStrategy[m.Message]] = [
    st.builds(m.Setup, options),
    st.builds(m.Goaway, texts, integers()),
    st.builds(m.Subscribe, integers(), tracks, parameters(Scope.SUBSCRIBE)),
    st.builds(m.SubscribeOk, integers(), parameters(Scope.SUBSCRIBE_OK), properties()),
    st.builds(m.Publish, integers(), tracks, integers(), parameters(Scope.PUBLISH), properties()),
    st.builds(m.PublishDone, integers(), integers(), texts),
    st.builds(m.PublishStateNotify, parameters(Scope.PUBLISH_STATE_NOTIFY)),
    st.builds(m.Fetch, integers(), tracks, parameters(Scope.FETCH)),
    st.builds(m.FetchOk, st.booleans(), locations, properties=properties()),
    st.builds(m.TrackStatus, integers(), tracks, parameters(Scope.TRACK_STATUS)),
    st.builds(m.PublishNamespace, integers(), namespaces, parameters(Scope.PUBLISH_NAMESPACE)),
    st.builds(m.SubscribeNamespace, integers(), namespaces, parameters(Scope.SUBSCRIBE_NAMESPACE)),
    st.builds(m.SubscribeTracks, integers(), namespaces, parameters(Scope.SUBSCRIBE_TRACKS)),
    st.builds(m.Namespace, namespaces),
    st.builds(m.NamespaceDone, namespaces),
    st.builds(m.PublishSkipped, namespaces, st.binary(max_size=60)),
    request_errors,
    redirects,
]


def _in(
    found: st.SearchStrategy[m.Message], request: type[m.Request], **context: Any
) -> st.SearchStrategy[Framed]:
    return found.map(lambda message: (message, {"request": request, **context}))


def _update(request: type[m.Request], scope: Scope, **context: Any) -> st.SearchStrategy[Framed]:
    return _in(st.builds(m.RequestUpdate, integers(), parameters(scope)), request, **context)


messages: st.SearchStrategy[Framed] = st.one_of(
    *(found.map(lambda message: (message, {})) for found in _PLAIN),
    _update(m.Subscribe, Scope.UPDATE_SUBSCRIPTION),
    _update(m.Publish, Scope.UPDATE_PUBLISH),
    _update(m.Publish, Scope.UPDATE_SUBSCRIPTION, by_requester=False),
    _update(m.Fetch, Scope.UPDATE_FETCH),
    _update(m.PublishNamespace, Scope.UPDATE_PUBLISH_NAMESPACE),
    _update(m.SubscribeNamespace, Scope.UPDATE_SUBSCRIBE_NAMESPACE),
    _update(m.SubscribeTracks, Scope.UPDATE_SUBSCRIBE_TRACKS),
    _in(st.builds(m.RequestOk, parameters(Scope.PUBLISH_OK)), m.Publish),
    _in(st.builds(m.RequestOk, parameters(Scope.TRACK_STATUS_OK), properties()), m.TrackStatus),
    _in(st.builds(m.RequestOk, parameters(Scope.NAMESPACE_OK)), m.SubscribeTracks),
    _in(st.builds(m.RequestOk, parameters(Scope.UPDATE_OK)), m.Subscribe, update=True),
)


# -- data streams: what a fetch stream may carry ---------------------------------------------------


@st.composite
def fetch_items(draw: st.DrawFn, order: GroupOrder) -> list[ObjectHeader | EndOfRange]:
    """Objects and markers in an order that the stream can carry; payload lengths are small."""
    groups = sorted(draw(st.sets(integers(), min_size=1, max_size=3)))
    if order is GroupOrder.DESCENDING:
        groups.reverse()
    items: list[ObjectHeader | EndOfRange] = []
    for group in groups:
        for object_id in sorted(draw(st.sets(integers(), max_size=4))):
            location = Location(group, object_id)
            if draw(st.integers(0, 3)) == 0:
                items.append(EndOfRange(draw(st.sampled_from(RangeKind)), location))
                continue
            items.append(
                ObjectHeader(
                    location,
                    draw(st.integers(0, 5)),
                    draw(st.none() | integers(3) | integers()),
                    draw(octets),
                    properties=draw(properties(max_size=2)),
                )
            )
    return items
