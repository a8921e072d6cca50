"""A moq-rs server whose sessions share one origin, as a relay's do."""

from __future__ import annotations

import asyncio
import sys

import moq

from tests.interop.peers.lines import answer


async def main(bind: str, certificate: str, key: str) -> None:
    async with moq.Server(bind, tls_cert=[certificate], tls_key=[key]) as server:
        answer(address=server.local_addr)
        serving = asyncio.create_task(server.serve())
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        serving.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
