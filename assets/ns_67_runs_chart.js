// The losses of the ticked runs in one chart, below the table of runs. Their colours are those of the heads of the table
// of facts, which says whose they are.
(function (ns) {
  "use strict";

  const WIDE = { l: 180, r: 16, t: 12, b: 22 }, NARROW = { l: 72, r: 8, t: 34, b: 22 }; // as in ns_40_plots.js
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

  // Whose line it is, and its newest value.
  function legendLine(name, colour, value) {
    const line = ns.make("div", "ns-legend-line"), mark = ns.make("span", "", "\u25cf ");
    mark.style.color = colour;
    line.append(mark, ns.make("span", "ns-legend-value", value), ns.make("span", "ns-legend-name", name));
    ns.setTitle(line, name);
    return line;
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
    const { l, r, t, b } = ns.isNarrow() ? NARROW : WIDE;
    const box = { l, t, w: width - l - r, h: height - t - b };
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
    const texts = lines.map(({ y }) => ns.significant(y.findLast((value) => value !== null) ?? NaN));
    ns.byId("legend-runs").replaceChildren(...shown.map(({ name, colour }, at) => legendLine(name, colour, texts[at])));
    const newest = lines.map(({ label }, at) => `${label}: ${texts[at]}`);
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
