"""The receiving half of `dashboard serve`: collector, real store on disk, `serve.json`; ends on SIGTERM.

Arguments: data folder, secret (hexadecimal), spool to ingest ("" for none).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from dashboard.ingest.collector import Collector
from dashboard.ingest.spool import SpoolIngest
from dashboard.store.duck import DuckStore
from probe.settings.places import ServeState, write_serve_state


def main() -> None:
    data, secret, spool = sys.argv[1:4]
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    store = DuckStore(Path(data))
    collector = Collector(
        store, endpoint="tcp://127.0.0.1:0", secret=bytes.fromhex(secret), on_change=lambda: None
    )
    endpoint = collector.start()
    write_serve_state(ServeState(page="", ingest=endpoint, pid=os.getpid(), secret=secret))
    ingest = SpoolIngest(store, Path(spool)) if spool else None
    while not stopping.wait(0.5):
        if ingest is not None:
            ingest.run()
    collector.stop()
    store.close()


if __name__ == "__main__":
    main()
