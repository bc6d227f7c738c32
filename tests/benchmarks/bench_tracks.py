"""Two line tracks over one step axis, drawn by Plotly and by the page's own painter, side by side.

    python tests/benchmarks/bench_tracks.py [--seconds 10] [--plotly FILE]

Ten steps a second reach two lines of 600 points with their extremes. Plotly has one figure with two subplots
on a shared axis, fed by `extendTraces`, whose range moves in jumps; the painter has two canvases. Printed of
each: the share of the main thread while live, what one redraw takes, frames of a pan, and its code's weight.
"""

from __future__ import annotations

import argparse
import gzip
import shutil
import statistics
from pathlib import Path
from typing import Any

import plotly
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-headless-shell")
SCRIPTS = ("ns_00_core", "ns_36_hatch", "ns_37_scales", "ns_38_axis", "ns_39_painter")
POINTS = 600
COMMON = """
  window.steps = 600; const noise = (i) => Math.sin(i * 12.9898) * 43758.5453 % 1;
  window.value = (i, k) => Math.exp(-i / 900) * (2 + k) + 0.2 * Math.abs(noise(i + k));
  window.range = () => { const end = Math.ceil((window.steps + 1) / 32) * 32; return [end - 640, end]; };
"""
PLOTLY = """
  const lines = [0, 1].flatMap((k) => ["low", "high", "mean"].map((part, at) => ({
    x: [...Array(600).keys()], y: [...Array(600).keys()].map((i) => value(i, k) * [0.9, 1.1, 1][at]),
    mode: "lines", line: { width: part === "mean" ? 1.6 : 0, color: "#74c0fc" },
    fill: part === "high" ? "tonexty" : undefined, yaxis: k ? "y2" : "y", hoverinfo: "skip" })));
  const axis = { nticks: 4, fixedrange: true, gridcolor: "#333" };
  const plot = document.getElementById("plot");
  window.start = () => Plotly.newPlot(plot, lines, { width: 1440, height: 230, showlegend: false,
    margin: { l: 180, r: 16, t: 10, b: 24 }, xaxis: { range: range(), gridcolor: "#333" },
    yaxis: { ...axis, domain: [0.42, 1] }, yaxis2: { ...axis, domain: [0, 0.38] } },
    { displayModeBar: false });
  let shown = range()[1];
  window.feed = () => {
    const x = window.steps++;
    const ys = [0, 1].flatMap((k) => [0.9, 1.1, 1].map((by) => [value(x, k) * by]));
    const done = Plotly.extendTraces(plot, { x: ys.map(() => [x]), y: ys }, [0, 1, 2, 3, 4, 5], 600);
    if (range()[1] === shown) return done;
    shown = range()[1];
    return Plotly.relayout(plot, { "xaxis.range": range() });
  };
  window.pan = (by) => Plotly.relayout(plot, { "xaxis.range": range().map((x) => x + by) });
"""
PAINTER = """
  const ns = window.nanscope, canvases = [140, 90].map((height) => {
    const canvas = document.createElement("canvas");
    Object.assign(canvas.style, { display: "block", width: "1440px", height: height + "px" });
    document.getElementById("plot").append(canvas);
    return [canvas, height];
  });
  const colours = { nan: "#f88", inf: "#fa4", gap: "#333", grid: "#333", muted: "#aaa" };
  window.by = 0;
  window.paint = () => canvases.forEach(([canvas, height], k) => {
    const first = window.steps - 600, x = Float64Array.from({ length: 600 }, (_, i) => first + i);
    const y = Float64Array.from(x, (at) => value(at, k));
    const low = y.map((v) => v * 0.9), high = y.map((v) => v * 1.1);
    const [left, right] = range().map((at) => at + window.by);
    const box = { l: 180, t: 12, w: 1244, h: height - 14 };
    const axis = { of: (at) => (at - left) / (right - left) };
    const lowest = Math.min(...low), highest = Math.max(...high), colour = "#74c0fc";
    const scale = ns.fittedScale({ lowest, positive: lowest, highest }, false);
    const ticks = ns.stepTicks(left, right, 11).map((step) => ({ share: axis.of(step), text: String(step) }));
    ns.paintChart(ns.freshContext(canvas, 1440, height), {
      box, axis, scale, colours, yTicks: ns.yTicks(scale, box.h), xTicks: ticks, hasFoot: true,
      lines: [{ x, y, colour }], areas: [{ x, low, high, colour }], bands: [], marks: [], gaps: [],
      breaks: [] });
  });
  window.start = () => window.paint();
  window.feed = () => { window.steps++; ns.later(window.paint); };
  window.pan = (by) => { window.by = by; ns.later(window.paint); };
"""
FRAMES = """async () => {
  const gaps = []; let last = performance.now();
  for (let at = 0; at < 120; at++) {
    window.pan(Math.sin(at / 20) * 100);
    await new Promise(requestAnimationFrame);
    const now = performance.now(); gaps.push(now - last); last = now;
  }
  return gaps.slice(10).sort((a, b) => a - b);
}"""
REDRAWS = """async (isPainter) => {
  const times = [];
  for (let at = 0; at < 40; at++) {
    const begun = performance.now();
    await window.feed();
    if (isPainter) window.paint();
    times.push(performance.now() - begun);
    await new Promise(requestAnimationFrame);
  }
  return times.sort((a, b) => a - b);
}"""


def measure(page: Page, name: str, sources: list[Path], script: str, seconds: float) -> None:
    """Print the figures of one of the two."""
    page.set_content(
        '<body style="margin:0;background:#17181b"><div id="plot" style="width:1440px"></div></body>'
    )
    for source in sources:
        page.add_script_tag(path=source)
    page.evaluate(f"() => {{ {COMMON} {script} }}")
    page.evaluate("window.start()")
    page.wait_for_timeout(1000)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def busy() -> float:
        found: list[dict[str, Any]] = session.send("Performance.getMetrics")["metrics"]
        return next(each["value"] for each in found if each["name"] == "TaskDuration")

    page.evaluate("window.timer = setInterval(window.feed, 100)")
    before = busy()
    page.wait_for_timeout(seconds * 1000)
    share = 100 * (busy() - before) / seconds
    page.evaluate("clearInterval(window.timer)")
    redraws = page.evaluate(REDRAWS, name == "painter")
    frames = page.evaluate(FRAMES)
    weight = sum(len(gzip.compress(source.read_bytes())) for source in sources)
    print(
        f"{name:8} main thread {share:5.1f} %   redraw {statistics.median(redraws):5.1f} ms (p95 "
        f"{redraws[int(0.95 * len(redraws))]:.1f})   pan, frames p50 {statistics.median(frames):.1f} ms, p95 "
        f"{frames[int(0.95 * len(frames))]:.1f} ms   code {weight / 1000:,.0f} kB compressed"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument(
        "--plotly",
        type=Path,
        default=Path(plotly.__file__).parent / "package_data" / "plotly.min.js",
        help="another build, for instance plotly-basic.min.js of the npm package plotly.js-basic-dist-min",
    )
    arguments = parser.parse_args()
    flags = ["--no-sandbox", "--disable-gpu"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        for name in ("plotly", "painter", "plotly", "painter"):
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            assets = [ROOT / "assets" / f"{script}.js" for script in SCRIPTS]
            sources = [arguments.plotly] if name == "plotly" else assets
            measure(page, name, sources, PLOTLY if name == "plotly" else PAINTER, arguments.seconds)
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
