"""Peak anonymous memory of a process, sampled from outside of its event loop."""

from __future__ import annotations

import threading
from pathlib import Path

INTERVAL = 0.05


def anonymous(process: int | str = "self") -> int:
    """Octets of anonymous memory that are resident now; 0 where the system does not tell."""
    try:
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    return 0


class Watch:
    """Samples every 50 ms from `start` to `stop`."""

    def __init__(self, process: int | str = "self") -> None:
        self._process = process
        self._base = 0
        self._peak = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """What is resident now is the base."""
        self._base = self._peak = anonymous(self._process)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(INTERVAL):
            self._peak = max(self._peak, anonymous(self._process))

    def stop(self) -> int:
        """Octets by which the peak exceeds the base."""
        self._over.set()
        self._thread.join()
        return max(self._peak, anonymous(self._process)) - self._base
