"""An origin that serves ranges of one Group only, as some relays do."""

from __future__ import annotations

from dataclasses import replace

from moqt.connection import Driver
from moqt.errors import RequestErrorCode, StreamErrorCode
from moqt.protocol.requests import RequestState
from moqt.wire.filters import LocationFilter
from moqt.wire.messages import Fetch, Subscribe
from tests.support.script import Play, ScriptedOrigin


class SingleGroupOrigin(ScriptedOrigin):
    """Refuses FETCH of several Groups, or accepts and resets it; a fill of several never comes."""

    def __init__(self, *, resets: bool = False, lacks: frozenset[int] = frozenset()) -> None:
        super().__init__()
        self._resets = resets
        self._lacks = lacks
        """Groups that it says are not there."""

    def request_received(self, driver: Driver, request: RequestState) -> None:
        message = request.message
        if isinstance(message, Subscribe) and message.parameters.fill is not None:
            wanted = message.parameters.fill.location_filter
            if wanted is not None and wanted != LocationFilter.relative_start(1):
                request.message = replace(
                    message, parameters=replace(message.parameters, fill=None)
                )
        elif isinstance(message, Fetch) and (wanted := message.parameters.location_filter):
            track = self.tracks.get(message.track)
            if track is not None and wanted.start.group in self._lacks:
                self.asked.append(message)
                Play(driver, request, track).reject(RequestErrorCode.INVALID_RANGE)
                return
            if track is not None and wanted.end_group_delta:
                self.asked.append(message)
                play = Play(driver, request, track)
                if self._resets:
                    play.accept()
                    play.fill((), end=StreamErrorCode.INTERNAL_ERROR)
                else:
                    play.reject(RequestErrorCode.NOT_SUPPORTED)
                return
        super().request_received(driver, request)
