"""Plain MOQT: publishes a track of ten Groups, one every tenth of a second, and serves it until Ctrl-C.

make certs
python examples/moqt_publish.py certs
"""

import asyncio
import sys
from pathlib import Path

import moqt


async def main(certs: Path) -> None:
    publisher = moqt.Publisher()
    track = publisher.add_track(moqt.Track(moqt.FullTrackName((b"example",), b"numbers")))
    publisher.add_namespace(track.name.namespace)
    tls = moqt.ServerTls(certificate=certs / "server.pem", private_key=certs / "server-key.pem")
    async with await moqt.serve("127.0.0.1", 0, publisher, tls=tls) as server:
        print(server.url, flush=True)
        for group in range(10):
            await asyncio.sleep(0.1)
            for number in range(3):
                track.add(moqt.Location(group, number), f"{group}.{number}".encode())
        track.end()
        await asyncio.Event().wait()


try:
    asyncio.run(main(Path(sys.argv[1])))
except KeyboardInterrupt:
    pass
