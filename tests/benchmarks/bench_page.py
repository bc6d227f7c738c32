"""What the page costs while live: weight, the browser's main thread, frames, how late it shows things.

    python tests/benchmarks/bench_page.py [--blocks 83] [--history 2000] [--seconds 20] [--ranks 64]

One process serves and is fed synthetic steps (10 a second, 6 layers a block); a real Chromium looks at it.
`--full` feeds all other series too and pins their charts below the tracks; `--ranks` looks at the view Ranks,
with 7 steps a second of each rank.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

TESTS = Path(__file__).parents[1]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-headless-shell")
sys.path[:0] = [str(TESTS / "dashboard"), str(TESTS / "integration"), str(TESTS.parent)]
STEP_S, RANKS_STEP_S = 0.1, 0.14  # as page_runs and rank_runs have them
EVENTS = 20


WATCH = """(interval) => {
    const ns = nanscope, draw = ns.drawHeatmap;
    window.painted = []; window.told = []; window.drawn = []; let newest = -1, known = -1;
    ns.drawHeatmap = () => {
        const begun = performance.now();
        draw();
        window.painted.push(performance.now() - begun);
    };
    const look = () => {
        const x = ns.array('times/x'), times = ns.array('times/y');
        const last = x.length - 1, now = Date.now() / 1000;
        const line = ns.painted('loss')?.lines.at(-1)?.x; // a pooled point stands in the middle of its steps
        const end = line?.length ? Math.ceil(line[line.length - 1]) : -1;
        const ages = (from, to, into) => {
            if (from < 0) return;
            for (let step = from + 1; step <= to; step++) {
                into.push(now - times[last] - (step - x[last]) * interval);
            }
        };
        if (last >= 0 && end > newest) { ages(newest, end, window.drawn); newest = end; }
        if (last >= 0 && ns.newestStep !== known) {
            ages(known, ns.newestStep, window.told);
            known = ns.newestStep;
        }
        requestAnimationFrame(look);
    };
    look();
}"""
"""Times each drawing of the heatmap; how old each step is when its value is told, and when a line has it."""
FRAMES = """() => {
    window.gaps = []; let last = performance.now(); window.isCounting = true;
    const tick = (now) => {
        window.gaps.push(now - last);
        last = now;
        if (window.isCounting) requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
}"""


def serve_and_feed(pipe: Any, folder: str, *, blocks: int, history: int, is_full: bool, ranks: int) -> None:
    """Serve; send the address; then step after step, and an event whenever the parent asks for one."""
    import page_runs
    import rank_runs

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
    interval = RANKS_STEP_S if ranks else STEP_S
    begin = time.time() - history * interval

    def feed(steps: range, bad: dict[int, str] | None = None) -> None:
        if ranks:
            slow = (ranks // 2,)
            rank_runs.fill_ranks(server.store, ranks=range(ranks), steps=steps, slow=slow, start_time=begin)
            return
        page_runs.fill(server.store, steps=steps, blocks=blocks, start_time=begin, bad=bad, is_full=is_full)

    bad = {history * 7 // 10: "nan", history * 8 // 10: "inf"}
    feed(range(history), bad)
    for at, severity in ((7, "critical"), (8, "warning"), (3, "info")):
        page_runs.add_event(server.store, page_runs.event(history * at // 10, severity=severity))
    pipe.send(server.address)
    step = history
    while True:
        due = begin + (step + 1) * interval
        if pipe.poll(max(0.0, due - time.time())):
            if pipe.recv() == "stop":
                break
            page_runs.add_event(server.store, page_runs.event(step, message=f"Event sent at step {step}"))
            pipe.send((step, time.time()))
            server.notify()
            continue
        feed(range(step, step + 1))
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


def spread(name: str, values: list[float], unit: str = "ms") -> None:
    """Print median, 95th percentile and number of values."""
    ordered = sorted(values)
    middle, high = ordered[len(ordered) // 2], ordered[int(0.95 * (len(ordered) - 1))]
    print(f"{name:16} {middle:.1f} {unit} median, {high:.1f} p95, of {len(ordered)}")


def measure_frames(page: Page) -> None:
    """Print the distances between frames while somebody hovers, zooms and pans."""
    box = page.locator("#heatmap-canvas").bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2

    def hover() -> None:
        for at in range(150):
            page.mouse.move(box["x"] + box["width"] * (0.1 + 0.8 * at / 150), middle)

    def zoom() -> None:
        page.keyboard.down("Control")
        for at in range(60):
            page.mouse.wheel(0, -40 if at < 30 else 40)
        page.keyboard.up("Control")

    def pan() -> None:
        page.evaluate("nanscope.zoom(nanscope.range[1] - 800, nanscope.range[1] - 200)")
        page.keyboard.down("Shift")
        page.mouse.move(box["x"] + box["width"] / 2, middle)
        page.mouse.down()
        for at in range(120):
            page.mouse.move(box["x"] + box["width"] / 2 + 200 * (at % 60) / 60, middle)
        page.mouse.up()
        page.keyboard.up("Shift")

    for name, act in (("hover", hover), ("zoom", zoom), ("pan", pan)):
        page.evaluate(FRAMES)
        act()
        page.evaluate("window.isCounting = false")
        spread(f"frames, {name}", page.evaluate("window.gaps.slice(3)"))
        page.keyboard.press("0")
        page.wait_for_timeout(500)


def measure_weight(page: Page, address: str) -> None:
    """Open the page and print what it fetches, compressed, and whether any of it came from elsewhere."""
    sizes, places = [], []
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    session.on("Network.loadingFinished", lambda message: sizes.append(message["encodedDataLength"]))
    session.on("Network.requestWillBeSent", lambda message: places.append(message["request"]["url"]))
    opened = time.perf_counter()
    page.goto(address)
    while not page.evaluate("Boolean(window.nanscope?.painted?.('loss'))"):
        page.wait_for_timeout(10)
    print(f"first chart      {time.perf_counter() - opened:.2f} s after opening the page")
    page.locator("#heatmap-labels button").first.wait_for()
    host = address.split("/")[2]
    strange = [place for place in places if place.split("/")[2:3] not in ([host], [""], [])]
    print(
        f"page             {sum(sizes) / 1e6:.2f} MB in {len(sizes)} answers, {len(strange)} from elsewhere"
    )


def measure_events(page: Page, pipe: Any) -> None:
    """Print how long an event takes from the store to the table on screen, which folds it under its cause."""
    delays = []
    page.locator("#tab-events").click()
    shown = "['#events-count', '.ns-fold'].map(each => document.querySelector(each)?.textContent).join()"
    for _ in range(EVENTS):
        before = page.evaluate(shown)
        pipe.send("event")
        _, sent = pipe.recv()
        while page.evaluate(shown) == before:
            page.wait_for_timeout(5)
        delays.append(time.time() - sent)
        page.wait_for_timeout(600)
    spread("event to screen", [1000 * delay for delay in delays])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=83)
    parser.add_argument("--history", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--size", default="1440x900")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--screenshots", type=Path)
    arguments = parser.parse_args()
    pipe, child = multiprocessing.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        process = multiprocessing.get_context("spawn").Process(
            target=serve_and_feed,
            args=(child, folder),
            kwargs={name: vars(arguments)[name] for name in ("blocks", "history", "ranks")}
            | {"is_full": arguments.full},
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
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        width, height = map(int, arguments.size.split("x"))
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme="dark")
        measure_weight(page, address)
        if arguments.full:
            page.evaluate("nanscope.change({ pinned: nanscope.templates.charts.map(({ id }) => id) })")
        page.wait_for_timeout(3000)
        page.evaluate(WATCH, RANKS_STEP_S if arguments.ranks else STEP_S)
        if arguments.ranks:
            page.locator("#tab-ranks").click()
            measure_live(page, arguments.seconds)
            browser.close()
            return
        measure_live(page, arguments.seconds)
        spread("value to screen", [1000 * age for age in page.evaluate("window.told")])
        spread("line to screen", [1000 * age for age in page.evaluate("window.drawn")])
        rows, columns = page.evaluate(
            "[nanscope.heatmap.shown.length, nanscope.array('heatmap/steps').length]"
        )
        spread(f"heatmap {columns}x{rows}", page.evaluate("window.painted"))
        measure_frames(page)
        if arguments.screenshots:
            page.screenshot(path=arguments.screenshots)
        measure_events(page, pipe)
        browser.close()


if __name__ == "__main__":
    main()
