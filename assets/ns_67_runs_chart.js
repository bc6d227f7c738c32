// The losses of the ticked runs in one chart, below the table of runs. Their colours are those of the heads of the table
// of facts, which says whose they are.
(function (ns) {
  "use strict";

  const LEFT_PX = 64, RIGHT_PX = 16, TOP_PX = 12, FOOT_PX = 22;
  const TICK_PX = 110;
  /** @type {{label: string, x: number[], y: number[]}[]} */
  let lines = [];

  const numberOf = (value) => value ?? NaN;

  function axisOf(width) {
    const ends = lines.map(({ x }) => x[x.length - 1] ?? 0);
    const first = -0.5, last = Math.max(10, ...ends) + 0.5;
    const of = (step) => (step - first) / (last - first);
    const xTicks = ns.stepTicks(first, last, Math.max(2, Math.floor(width / TICK_PX)));
    return { axis: { first, last, of }, xTicks: xTicks.map((step) => ({ share: of(step), text: ns.count(step) })) };
  }

  function draw() {
    const place = ns.byId("plot-runs"), width = place.clientWidth, height = place.clientHeight;
    if (!lines.length || !width) return;
    const colours = ns.theme().colours;
    const shown = lines.map(({ label, x, y }, index) => ({
      name: label, x, y: y.map(numberOf), colour: colours.series[index % colours.series.length], hasDots: x.length <= 3,
    }));
    const limits = ns.limitsOf(shown.map((line) => line.y));
    const scale = ns.fittedScale(limits, limits.highest > ns.templates.logRatio * limits.positive);
    const box = { l: LEFT_PX, t: TOP_PX, w: width - LEFT_PX - RIGHT_PX, h: height - TOP_PX - FOOT_PX };
    let canvas = place.querySelector("canvas");
    if (!canvas) {
      canvas = ns.make("canvas", "ns-plot-canvas");
      place.append(canvas);
    }
    Object.assign(canvas.style, { width: width + "px", height: height + "px" });
    ns.paintChart(ns.freshContext(canvas, width, height), {
      box, scale, colours, ...axisOf(box.w), yTicks: ns.yTicks(scale, box.h), hasFoot: true, lines: shown,
      areas: [], bands: [], marks: [], gaps: [], breaks: [],
    });
    const newest = lines.map(({ label, y }) => `${label}: ${ns.significant(y.findLast((value) => value !== null) ?? NaN)}`);
    ns.setAttribute(ns.byId("runs-chart"), "aria-label", `Losses over steps; newest ${newest.join(", ")}`);
  }

  ns.drawOverlay = function (answer) {
    lines = answer.lines ?? [];
    ns.byId("runs-chart").hidden = !lines.length;
    ns.later(draw);
  };

  ns.startRunsChart = function () {
    new ResizeObserver(() => ns.later(draw)).observe(ns.byId("runs-chart"));
    ns.on("theme", () => ns.later(draw));
  };
})(window.nanscope);
