"""Peers that cannot carry KVCS, told from peers that are merely gone."""

from __future__ import annotations

from kvcs.errors import KvcsError, PeerUnsuitable
from moqt.errors import MoqtError, SessionClosed, SessionErrorCode


def unsuitable(error: KvcsError | MoqtError, url: str) -> PeerUnsuitable | None:
    """What to tell when the first namespace that a peer saw made it close the session; None for other errors.

    Some implementations take only text in namespaces and call anything else a violation of the protocol.
    """
    if not isinstance(error, SessionClosed) or not error.remote:
        return None
    if error.code != SessionErrorCode.PROTOCOL_VIOLATION:
        return None
    reason = f" ({error.reason})" if error.reason else ""
    return PeerUnsuitable(
        f"{url or 'the peer'} closed the session with PROTOCOL_VIOLATION{reason} when it was given a KVCS namespace; "
        "its fields are binary, which some relays refuse: use one that takes any octets there"
    )
