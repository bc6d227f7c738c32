"""Prints the latency from a training step that goes wrong to its marker on the screen of a real browser.

    python tests/benchmarks/bench_latency.py [--events 20] [--rate 20]

A small model is trained at a fixed rate beside `dashboard serve`; every 40th step its loss is NaN. A script
in the page notes when each marker is drawn within the timeline's range. The latency starts at the step's
verdict, before the replay that names its origin; the first five events include one. The training ends with
the last of its events, for which the page is given as long as for the others. Both clocks are this machine's.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-headless-shell")
EVERY = 40
LATEST_S = 30.0
"""An event that is not on the page so long after the training has ended does not come any more."""
TRAINER = """
import sys, time, torch, probe
events, rate = int(sys.argv[1]), float(sys.argv[2])
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(20)])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
run = probe.watch(model, optimizer, name="latency")
for step in range(EVERY * (events + 1)):
    began = time.monotonic()
    loss = model(torch.randn(8, 16)).square().mean()
    if step % EVERY == EVERY - 1:
        loss = loss * float("nan")
    optimizer.zero_grad()
    loss.backward()
    if torch.isfinite(loss):
        optimizer.step()
    time.sleep(max(0.0, 1 / rate - (time.monotonic() - began)))
""".replace("EVERY", str(EVERY))
NOTE_MARKERS = """
window.markerTimes = {};
const note = () => {
  for (const { dataset } of document.querySelectorAll('#timeline-markers .ns-marker'))
    window.markerTimes[dataset.event] ??= Date.now() / 1000;
  requestAnimationFrame(note);
};
note();
"""


def start_serve(environment: dict[str, str]) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "dashboard", "serve", "--port", "0", "--ingest", "tcp://127.0.0.1:*"]
    server = subprocess.Popen(
        [*command, "--no-browser"], stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
    )
    assert server.stdout is not None
    found = re.search(r"http\S+", server.stdout.readline())
    assert found
    return server, found[0]


def train_and_watch(
    page: Page, environment: dict[str, str], arguments: argparse.Namespace
) -> tuple[dict[str, float], dict[str, float]]:
    """Return event id -> UNIX seconds at which the page first held its marker, and at which it was judged."""
    page.add_init_script(f"addEventListener('DOMContentLoaded', () => {{ {NOTE_MARKERS} }});")
    page.goto(environment["ADDRESS"])
    page.wait_for_timeout(3000)
    script = [sys.executable, "-c", TRAINER, str(arguments.events), str(arguments.rate)]
    training = subprocess.Popen(script, env=environment, cwd=ROOT, stderr=subprocess.DEVNULL)
    while training.poll() is None:
        page.wait_for_timeout(500)
    judged, shown = event_times(environment), {}
    deadline = time.monotonic() + LATEST_S
    while time.monotonic() < deadline and judged.keys() - shown.keys():
        page.wait_for_timeout(100)
        shown = page.evaluate("window.markerTimes")
    return shown, judged


def event_times(environment: dict[str, str]) -> dict[str, float]:
    command = [sys.executable, "-m", "dashboard", "events", environment["NANSCOPE_SPOOL"], "--json"]
    listed = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    events = [json.loads(line) for line in listed.stdout.splitlines()]
    return {event["id"]: event["time"] for event in events if event["kind"] == "nonfinite_loss"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=20)
    parser.add_argument("--rate", type=float, default=20.0, help="steps a second")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        places = {
            "XDG_STATE_HOME": f"{folder}/state",
            "NANSCOPE_SPOOL": f"{folder}/spool",
            "NANSCOPE_LINGER_S": "1",
        }
        environment = {**os.environ, **places}
        server, environment["ADDRESS"] = start_serve(environment)
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        shown, began = train_and_watch(chromium.new_page(), environment, arguments)
        chromium.close()
        server.terminate()
        server.communicate(timeout=30)
    delays_ms = sorted(1e3 * (shown[identity] - began[identity]) for identity in began if identity in shown)
    missing = [number for number, identity in enumerate(began, 1) if identity not in shown]
    if missing:
        print(f"not shown within {LATEST_S:.0f} s after the training: event number {missing}")
    print(f"{len(delays_ms)} of {len(began)} events shown; step to marker, ms:", end=" ")
    print(", ".join(f"p{q} {np.percentile(delays_ms, q):.0f}" for q in (50, 95, 100)))


if __name__ == "__main__":
    main()
