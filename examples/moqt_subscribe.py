"""Plain MOQT: prints all Objects of a track, those published before and those still to come.

python examples/moqt_subscribe.py moqt://127.0.0.1:4443 certs/ca.pem
"""

import asyncio
import sys
from pathlib import Path

import moqt


async def main(url: str, ca: str) -> None:
    tls = moqt.ClientTls(ca_file=Path(ca))
    async with await moqt.connect(url, tls=tls) as session:
        subscription = await session.subscribe(
            (b"example",),
            b"numbers",
            location=moqt.LocationFilter.next_object(),
            fill=moqt.LocationFilter.absolute_start(moqt.Location(0, 0)),
        )
        async for item in subscription:
            if isinstance(item, moqt.Object) and item.status is moqt.ObjectStatus.NORMAL:
                print(item.location, bytes(item.payload).decode(), flush=True)


asyncio.run(main(*sys.argv[1:]))
