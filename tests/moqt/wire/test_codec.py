"""Which parameters a REQUEST_UPDATE and a REQUEST_OK may have, and where they may come at all."""

from __future__ import annotations

import pytest

from moqt.errors import ProtocolViolation
from moqt.wire import messages as m
from moqt.wire.codec import Context, message_scope
from moqt.wire.parameters import Scope
from tests.moqt.wire.support import REQUESTS

UPDATES = [
    # request, by its requester, scope
    (m.Subscribe, True, Scope.UPDATE_SUBSCRIPTION),
    (m.Publish, True, Scope.UPDATE_PUBLISH),
    (m.Publish, False, Scope.UPDATE_SUBSCRIPTION),
    (m.Fetch, True, Scope.UPDATE_FETCH),
    (m.PublishNamespace, True, Scope.UPDATE_PUBLISH_NAMESPACE),
    (m.SubscribeNamespace, True, Scope.UPDATE_SUBSCRIBE_NAMESPACE),
    (m.SubscribeTracks, True, Scope.UPDATE_SUBSCRIBE_TRACKS),
]
OKS = [
    # request, answers an update, scope
    (m.Publish, False, Scope.PUBLISH_OK),
    (m.TrackStatus, False, Scope.TRACK_STATUS_OK),
    (m.PublishNamespace, False, Scope.NAMESPACE_OK),
    (m.SubscribeNamespace, False, Scope.NAMESPACE_OK),
    (m.SubscribeTracks, False, Scope.NAMESPACE_OK),
    *(
        (request, True, Scope.UPDATE_OK)
        for request in REQUESTS.values()
        if request is not m.TrackStatus
    ),
]
ANYWHERE = [None, *REQUESTS.values()]


@pytest.mark.parametrize("by_requester", [True, False])
@pytest.mark.parametrize("request_type", ANYWHERE)
def test_where_a_request_update_may_come(
    request_type: type[m.Request] | None, by_requester: bool
) -> None:
    scopes = {(request, by): scope for request, by, scope in UPDATES}
    expected = scopes.get((request_type, by_requester)) if request_type else None
    context = Context(request_type, by_requester, update=False)
    body = b"\x02\x00"
    if expected is not None:
        assert message_scope(m.RequestUpdate, context) is expected
        m.decode_message(0x02, body, request_type, by_requester=by_requester)
        return
    with pytest.raises(ProtocolViolation, match="no RequestUpdate may come"):
        m.decode_message(0x02, body, request_type, by_requester=by_requester)
    with pytest.raises(ValueError, match="no RequestUpdate may come"):
        m.encode_message(m.RequestUpdate(2), request_type, by_requester=by_requester)


@pytest.mark.parametrize("update", [True, False])
@pytest.mark.parametrize("request_type", ANYWHERE)
def test_where_a_request_ok_may_come(request_type: type[m.Request] | None, update: bool) -> None:
    scopes = {(request, answers): scope for request, answers, scope in OKS}
    expected = scopes.get((request_type, update)) if request_type else None
    if expected is not None:
        assert message_scope(m.RequestOk, Context(request_type, True, update)) is expected
        assert m.decode_message(0x07, b"\x00", request_type, update=update) == m.RequestOk()
        return
    with pytest.raises(ProtocolViolation, match="no RequestOk may come"):
        m.decode_message(0x07, b"\x00", request_type, update=update)
    with pytest.raises(ValueError, match="no RequestOk may come"):
        m.encode_message(m.RequestOk(), request_type, update=update)


@pytest.mark.parametrize("request_type", REQUESTS.values())
def test_other_messages_have_one_scope(request_type: type[m.Request]) -> None:
    for context in (Context(None, True, False), Context(m.Subscribe, False, True)):
        assert isinstance(message_scope(request_type, context), Scope)
