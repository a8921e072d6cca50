"""How a relay answers REQUEST_UPDATE (draft-22 section 3.4)."""

from __future__ import annotations

from moqt.auth import Refusal
from moqt.errors import PublishDoneCode, RequestErrorCode
from moqt.protocol.requests import RequestState
from moqt.relay.peers import Peer
from moqt.wire.messages import RequestError, RequestOk, RequestUpdate
from moqt.wire.parameters import Parameters


def update(
    peer: Peer,
    request: RequestState,
    message: RequestUpdate,
    fault: str | None,
    unauthorised: Refusal | None = None,
) -> bool:
    """Applies what can be changed, or refuses, which ends the request.

    True when that is for the caller to do: nothing is sent for it that could end by itself.
    """
    served = peer.subscriptions.get(request)
    fetched = peer.fetches.get(request)
    refusal = _refusal(peer, request, message.parameters, fault)
    if unauthorised is not None:
        refusal = unauthorised.code, unauthorised.reason
    if refusal is not None:
        return _refuse(peer, request, *refusal)
    if served is not None:
        largest = served.track.cached.largest
        peer.driver.send(request, RequestOk(Parameters(largest_object=largest)))
        served.update(message.request_id, message.parameters)
    else:
        peer.driver.send(request, RequestOk(Parameters()))
        priority = message.parameters.subscriber_priority
        if fetched is not None and priority is not None:
            fetched.set_subscriber_priority(priority)
    return False


def _refuse(peer: Peer, request: RequestState, code: RequestErrorCode, reason: str) -> bool:
    served = peer.subscriptions.get(request)
    fetched = peer.fetches.get(request)
    ends = served is None and fetched is None
    peer.driver.send(request, RequestError(code, 0, reason, None), fin=ends)
    if served is not None:
        served.finish(PublishDoneCode.UPDATE_FAILED, reason)
    elif fetched is not None:
        fetched.close()
    return ends


def _refusal(
    peer: Peer, request: RequestState, asked: Parameters, fault: str | None
) -> tuple[RequestErrorCode, str] | None:
    """Why an update cannot be granted."""
    served = peer.subscriptions.get(request)
    if fault is not None:
        return RequestErrorCode.INVALID_FILTER, fault
    if asked.track_namespace_prefix is not None:
        return RequestErrorCode.NOT_SUPPORTED, "ask for the other prefix"
    if served is None:
        return None
    may_fetch = peer.fetching < peer.driver.config.max_fetches
    return served.objection(asked, may_fetch=may_fetch)
