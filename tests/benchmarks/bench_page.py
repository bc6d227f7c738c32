"""What the page costs while live: kB/s, share of the browser's main thread, event to screen.

    python tests/benchmarks/bench_page.py [--blocks 83] [--history 2000] [--seconds 20]

One process serves and is fed synthetic steps (10 a second, 6 layers a block); a real Chromium looks at it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "dashboard"), str(TESTS / "integration"), str(TESTS.parent)]
STEPS_PER_S = 10
EVENTS = 20


def serve_and_feed(pipe: Any, folder: str, *, blocks: int, history: int) -> None:
    """Serve; send the address; then one step each 0.1 s, and an event whenever the parent asks for one."""
    import page_runs

    from dashboard.serving.server import Server

    environment = {"XDG_STATE_HOME": folder, "NANSCOPE_TOKEN": "token-for-bench"}
    started = time.perf_counter()
    server = Server(
        port=0,
        ingest="tcp://127.0.0.1:0",
        data=Path(folder) / "data",
        spool=Path(folder) / "spool",
        environment=environment,
    )
    server.start()
    pipe.send(("start_s", time.perf_counter() - started))
    begin = time.time() - history / STEPS_PER_S
    bad = {history * 7 // 10: "nan", history * 8 // 10: "inf"}
    page_runs.fill(server.store, steps=range(history), blocks=blocks, start_time=begin, bad=bad)
    for at, severity in ((7, "critical"), (8, "warning"), (3, "info")):
        page_runs.add_event(server.store, page_runs.event(history * at // 10, severity=severity))
    pipe.send(server.address)
    step = history
    while True:
        due = begin + (step + 1) / STEPS_PER_S
        if pipe.poll(max(0.0, due - time.time())):
            if pipe.recv() == "stop":
                break
            page_runs.add_event(server.store, page_runs.event(step, message=f"Event sent at step {step}"))
            pipe.send((step, time.time()))
            server.notify()
            continue
        page_runs.fill(server.store, steps=range(step, step + 1), blocks=blocks, start_time=begin)
        server.notify()
        step += 1
    server.stop()


def measure_live(page: Page, seconds: float) -> None:
    """Print transfer and main-thread share over some seconds."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def metrics() -> dict[str, float]:
        found = session.send("Performance.getMetrics")["metrics"]
        return {metric["name"]: metric["value"] for metric in found}

    before, sent = metrics(), page.evaluate("nanscope.link.bytes")
    started = time.perf_counter()
    page.wait_for_timeout(seconds * 1000)
    after, elapsed = metrics(), time.perf_counter() - started
    transferred = page.evaluate("nanscope.link.bytes") - sent
    for name in ("TaskDuration", "ScriptDuration", "LayoutDuration"):
        print(f"{name:16} {100 * (after[name] - before[name]) / elapsed:6.1f} % of the main thread")
    print(f"live feed        {transferred / elapsed / 1000:6.1f} kB/s before compression")


def measure_events(page: Page, pipe: Any) -> None:
    """Print how long an event takes from the store to the table on screen."""
    delays = []
    page.locator("#tab-events").click()
    for _ in range(EVENTS):
        pipe.send("event")
        step, sent = pipe.recv()
        while f"Event sent at step {step}" not in page.evaluate(
            "document.querySelector('#event-table').innerText"
        ):
            page.wait_for_timeout(5)
        delays.append(time.time() - sent)
        page.wait_for_timeout(600)
    delays.sort()
    print(f"event to screen  {delays[len(delays) // 2] * 1000:.0f} ms median, {delays[-2] * 1000:.0f} ms p95")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=83)
    parser.add_argument("--history", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--screenshots", type=Path)
    arguments = parser.parse_args()
    pipe, child = multiprocessing.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        process = multiprocessing.get_context("spawn").Process(
            target=serve_and_feed,
            args=(child, folder),
            kwargs={"blocks": arguments.blocks, "history": arguments.history},
        )
        process.start()
        print(f"server start     {pipe.recv()[1]:.2f} s, imports included")
        look(pipe, arguments)
        pipe.send("stop")
        process.join(20)


def look(pipe: Any, arguments: argparse.Namespace) -> None:
    """Open the page and print every number."""
    address = pipe.recv()
    flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=flags)
        page = browser.new_page(viewport={"width": 1440, "height": 900}, color_scheme="dark")
        opened = time.perf_counter()
        page.goto(address)
        page.locator("#heatmap-labels button").first.wait_for()
        print(f"first heatmap    {time.perf_counter() - opened:.2f} s after opening the page")
        page.wait_for_timeout(3000)
        measure_live(page, arguments.seconds)
        if arguments.screenshots:
            page.screenshot(path=arguments.screenshots)
        measure_events(page, pipe)
        browser.close()


if __name__ == "__main__":
    main()
