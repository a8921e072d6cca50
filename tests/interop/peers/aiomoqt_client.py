"""An aiomoqt subscriber and fetcher."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import AsyncExitStack
from typing import Any

from aiomoqt.client import MOQTClient
from aiomoqt.messages.params import D20ParamType, LocationFilter
from aiomoqt.types import MOQTException, MOQTRequestError, ParamType
from aiomoqt.utils.url import parse_relay_url

from tests.interop.peers.lines import fields, serve

PATIENCE = 20.0
DRAFT = 22


def location(value: list[int] | str | None) -> LocationFilter | None:
    """`next`, or the numbers of an absolute filter."""
    if value is None:
        return None
    if value == "next":
        return LocationFilter.next_object()
    return LocationFilter.absolute(*value)


class Client:
    """One session, and what came on each of its requests."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._session: Any = None
        self._objects: dict[int, list[list[Any]]] = {}
        self._done: dict[int, Any] = {}
        self._news = asyncio.Event()

    async def connect(self, url: str, ca: str) -> dict[str, Any]:
        """Opens the session."""
        to = parse_relay_url(url)
        client = MOQTClient(
            to.host,
            to.port,
            path=to.path or "",
            use_quic=True,
            ca_file=ca,
            supported_drafts=DRAFT,
            keep_alive_interval=3.0,
        )
        self._session = await asyncio.wait_for(
            self._stack.enter_async_context(client.connect()), PATIENCE
        )
        await self._session.client_session_init()
        self._session.on_fetch_object = self._fetched
        return {"draft": self._session.negotiated_draft}

    def _fetched(self, item: Any, size: int, at: int, request_id: int) -> None:
        self._note(request_id, item, item.group_id, item.subgroup_id)

    def _note(self, request_id: int, item: Any, group: int, subgroup: int | None) -> None:
        payload = bytes(item.payload or b"")
        self._objects.setdefault(request_id, []).append(
            [
                group,
                item.object_id,
                int(item.status or 0),
                len(payload),
                hashlib.sha256(payload).hexdigest(),
                item.publisher_priority,
                subgroup,
            ]
        )
        self._news.set()

    async def subscribe(
        self,
        namespace: list[str],
        name: str,
        filter: list[int] | str | None = None,
        fill: list[int] | None = None,
    ) -> dict[str, Any]:
        """SUBSCRIBE, with a fill where one is given."""
        parameters: dict[int, Any] = {}
        if fill is not None:
            parameters[D20ParamType.FILL_PARAMETERS] = {
                ParamType.GROUP_ORDER: 1,
                D20ParamType.LOCATION_FILTER: location(fill),
            }
        key = -1 - len(self._objects)
        live: list[list[Any]] = self._objects.setdefault(key, [])

        def arrived(item: Any, size: int, at: int, group: int, subgroup: int) -> None:
            self._note(key, item, group, subgroup)

        ok = await self._session.subscribe(
            namespace=fields(namespace),
            track_name=bytes.fromhex(name),
            parameters=parameters,
            location_filter=location(filter),
            on_object=arrived,
            on_done=lambda done: self._ended(key, done),
            wait_response=True,
        )
        assert self._objects[key] is live
        return {
            "live": key,
            "fill": ok.request_id,
            "largest": largest(ok),
            "properties": properties(ok),
        }

    def _ended(self, key: int, done: Any) -> None:
        self._done[key] = done
        self._news.set()

    async def objects(self, key: int, count: int) -> dict[str, Any]:
        """Waits for `count` Objects of a request."""
        async with asyncio.timeout(PATIENCE):
            while len(self._objects.get(key, ())) < count:
                self._news.clear()
                await self._news.wait()
        return {"objects": self._objects.get(key, [])}

    async def done(self, key: int) -> dict[str, Any]:
        """Waits for PUBLISH_DONE."""
        async with asyncio.timeout(PATIENCE):
            while key not in self._done:
                self._news.clear()
                await self._news.wait()
        done = self._done[key]
        return {"status": int(done.status_code), "streams": done.stream_count}

    async def filled(self, key: int) -> dict[str, Any]:
        """Waits for the end of a fill stream."""
        clean = await self._session.await_fetch_done(key, timeout=PATIENCE)
        return {"clean": clean, "objects": self._objects.get(key, [])}

    async def fetch(
        self,
        namespace: list[str],
        name: str,
        filter: list[int] | None = None,
        order: int = 1,
    ) -> dict[str, Any]:
        """FETCH to its end."""
        ok = await self._session.fetch(
            namespace=fields(namespace),
            track_name=bytes.fromhex(name),
            group_order=order,
            location_filter=location(filter),
            wait_response=True,
        )
        clean = await self._session.await_fetch_done(ok.request_id, timeout=PATIENCE)
        return {
            # What the library reports is the Location after the last.
            "end": [ok.largest_group_id, ok.largest_object_id - 1],
            "end_of_track": bool(ok.end_of_track),
            "properties": properties(ok),
            "clean": clean,
            "objects": self._objects.get(ok.request_id, []),
        }

    async def status(self, namespace: list[str], name: str) -> dict[str, Any]:
        """TRACK_STATUS."""
        ok = await self._session.track_status(
            fields(namespace), bytes.fromhex(name), wait_response=True
        )
        return {"largest": largest(ok), "properties": properties(ok)}

    async def namespaces(self, prefix: list[str], count: int) -> dict[str, Any]:
        """SUBSCRIBE_NAMESPACE, and the first `count` suffixes."""
        await self._session.subscribe_namespace(fields(prefix), wait_response=True)
        found = [await self._session.await_namespace(timeout=PATIENCE) for _ in range(count)]
        return {"suffixes": [[part.hex() for part in one.namespace_suffix] for one in found]}

    async def closed(self) -> dict[str, Any]:
        """Whether the session has ended, and with what."""
        return {"closed": repr(self._session._close_err) if self._session._close_err else None}


def largest(ok: Any) -> list[int] | None:
    """LARGEST_OBJECT of an answer."""
    value = (ok.parameters or {}).get(ParamType.LARGEST_OBJECT)
    if value is None and getattr(ok, "largest_group_id", None) is not None:
        value = ok.largest_group_id, ok.largest_object_id
    return None if value is None else [int(part) for part in value]


def properties(ok: Any) -> dict[str, Any]:
    """Track Properties of an answer."""
    found = getattr(ok, "track_properties", None) or getattr(ok, "track_extensions", None) or {}
    return {
        f"{kind:x}": value.hex() if isinstance(value, bytes) else value
        for kind, value in found.items()
    }


async def main() -> None:
    async with AsyncExitStack() as stack:
        client = Client(stack)
        names = [
            "connect",
            "subscribe",
            "objects",
            "done",
            "filled",
            "fetch",
            "status",
            "namespaces",
            "closed",
        ]
        failures = (MOQTRequestError, MOQTException, TimeoutError, asyncio.CancelledError)
        await serve({name: getattr(client, name) for name in names}, failures)


if __name__ == "__main__":
    asyncio.run(main())
