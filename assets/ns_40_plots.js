// Line charts: draws what the live feed sent with Plotly, keeps one step range on all charts, follows zooms,
// sizes and themes. Layouts and trace styles come from Python (dashboard/layout.py: figure_templates).
(function (ns) {
  "use strict";

  const CONFIG = { displayModeBar: false, doubleClick: false, scrollZoom: false, showTips: false };
  const FEW_STEPS = 12; // as in dashboard/views/theme.py
  const FEW_POINTS = 3; // as in dashboard/views/charts.py
  const onScreen = new Set();
  const drawn = new Set();
  let last = null; // newest header that carried data

  ns.theme = () => ns.templates.themes[ns.themeName];
  ns.plot = (id) => ns.byId("plot-" + id);

  // Of the column that holds the charts, because before the first message they are hidden and have no width.
  ns.plotWidth = function () {
    const column = document.querySelector(".ns-main");
    return column ? column.clientWidth - GUTTER - RIGHT : 800;
  };

  const keys = new Map();

  // Tracks share one axis, whose numbers stand at the foot; their names and values are in the gutter at the left.
  const GUTTER = 180, RIGHT = 16;
  const TOPS = { heatmap: 24 };
  const FOOT = "timeline";
  ns.isTrack = (id) => id === "heatmap" || id === FOOT || ns.templates.tracks.includes(id);
  function inColumn(id, layout) {
    if (!ns.byId("panel-tracks").contains(ns.plot(id))) return layout;
    if (ns.isLayers()) return { ...layout, annotations: [] }; // it has its margins from the view
    const margin = { ...layout.margin, l: GUTTER, r: RIGHT };
    if (!ns.isTrack(id)) return { ...layout, margin };
    return {
      ...layout,
      margin: { ...margin, t: TOPS[id] ?? 10, b: id === FOOT ? 24 : 0 },
      xaxis: { ...layout.xaxis, showticklabels: id === FOOT, showline: false },
      annotations: [],
    };
  }

  // Draws one chart; the first time it also starts listening to its zooms. With a key, only when the key, the
  // theme, the axis or the size has changed. Returns whether the chart is on screen.
  ns.draw = function (id, traces, layout, key) {
    const element = ns.plot(id);
    if (!element || !window.Plotly || !element.clientWidth) return false;
    const state = [key, ns.themeName, ns.axisRange(), element.clientWidth, element.clientHeight].join();
    if (key !== undefined && keys.get(id) === state) return true;
    keys.set(id, state);
    window.Plotly.react(element, traces, { ...inColumn(id, layout), autosize: true }, CONFIG);
    if (!drawn.has(id)) {
      drawn.add(id);
      element.on("plotly_relayout", (change) => {
        if ("xaxis.range[0]" in change) ns.zoom(change["xaxis.range[0]"], change["xaxis.range[1]"]);
      });
      element.on("plotly_doubleclick", ns.reset);
      ns.emit("first-draw", id);
    }
    return true;
  };

  // The x-axis of what is shown. Live it ends a little later and grows in jumps, because redrawing four axes
  // every second is most of what the page would cost; a run's first steps stand at the left of a few empty ones.
  ns.axisRange = function () {
    const [first, end] = ns.range || [0, 0]; // none before a run's first step
    if (ns.view.paused) return [first - 0.5, end - 0.5];
    const jump = 2 ** Math.max(0, Math.floor(Math.log2((end - first) / 16)));
    return [first - 0.5, Math.max(Math.ceil(end / jump) * jump, first + 10) - 0.5];
  };

  ns.withRange = function (layout) {
    const range = ns.axisRange();
    const ticks = range[1] - range[0] <= FEW_STEPS ? { tick0: 0, dtick: 1 } : {};
    return { ...layout, xaxis: { ...layout.xaxis, range, autorange: false, ...ticks } };
  };

  // Smallest and largest finite value of a chart's lines, and smallest positive one.
  function limits(chart, fields) {
    let lowest = Infinity, positive = Infinity, highest = -Infinity;
    for (const name of fields.series) {
      for (const value of ns.array(`${chart.id}/${name}/line/y`)) {
        if (!Number.isFinite(value)) continue;
        lowest = Math.min(lowest, value);
        highest = Math.max(highest, value);
        if (value > 0) positive = Math.min(positive, value);
      }
    }
    return { lowest, positive, highest };
  }

  // A log axis only where values differ enough (dashboard/views/charts.py: is_wide); no scale without values;
  // a constant stands in the middle of a scale that begins at 0.
  function scaled(layout, chart, fields) {
    if (!fields.series.length) return { ...layout, yaxis: { ...layout.yaxis, showticklabels: false } };
    const { lowest, positive, highest } = limits(chart, fields);
    if (lowest === highest && highest > 0) {
      return { ...layout, yaxis: { ...layout.yaxis, range: [0, 2 * highest], autorange: false } };
    }
    const inner = ns.innerLimits(fields.series.flatMap((name) => [...ns.array(`${chart.id}/${name}/line/y`)]));
    const isLog = chart.log ? highest > ns.templates.logRatio * positive : false;
    if (!isLog && !(ns.view.log && lowest > 0)) {
      return { ...layout, yaxis: ns.clipped(layout.yaxis, inner) };
    }
    // As in dashboard/views/charts.py: log_tick.
    const dtick = Math.max(1, Math.round(Math.log10(highest / positive) / 3));
    const ticks = highest > ns.templates.logRatio * positive ? { dtick } : {};
    return { ...layout, yaxis: ns.clipped({ ...layout.yaxis, ...ns.theme().logAxis, ...ticks }, inner) };
  }

  function gapShapes(header) {
    const [left, right] = ns.axisRange();
    return header.gaps.map((gap) => ({
      type: "rect", xref: "x", yref: "paper", y0: 0, y1: 1, layer: "below", line: { width: 0 },
      x0: gap.first === null ? left : gap.first - 0.5,
      x1: gap.last === null ? right : gap.last + 0.5,
      fillcolor: ns.theme().colours.gap,
    }));
  }

  function tracesOf(chart, fields) {
    const unit = ns.theme().units[chart.template];
    const traces = [];
    for (const name of fields.series) {
      const colour = ns.colourOf(chart, fields, name);
      for (const part of ns.templates.parts) {
        const key = `${chart.id}/${name}/${part}`;
        const x = ns.array(key + "/x");
        const isShort = part === "line" && x.length <= FEW_POINTS;
        const mode = isShort ? { mode: "lines+markers" } : {};
        const style = ns.named(ns.theme().traces[`${unit}/${part}`][colour], ns.escaped(ns.labelOf(chart, name)));
        if (!x.length && part !== "line") continue;
        const trace = { ...style, ...mode, x, y: ns.array(key + "/y") };
        traces.push(...(part === "line" ? ns.lineTraces(trace) : [trace]));
      }
    }
    for (const name of Object.keys(fields.marks || {})) {
      const key = `${chart.id}/${name}/mark`;
      const x = ns.array(key + "/x");
      if (x.length) traces.push({ ...ns.theme().marks[`${chart.id}/${name}`], x, y: ns.array(key + "/y") });
    }
    return traces;
  }

  function drawChart(chart) {
    const fields = last.charts[chart.id];
    if (!fields) return;
    const template = ns.named(ns.theme().layouts[chart.template], ns.escaped(chart.title || ""));
    const layout = scaled(ns.withRange(template), chart, fields);
    ns.draw(chart.id, tracesOf(chart, fields), { ...ns.captioned(layout, chart, fields), shapes: gapShapes(last) });
  }

  // The charts of the page from top to bottom; those of the user's own series are named by the message.
  function chartList() {
    const fixed = ns.templates.charts.map((chart) => ({ ...chart, template: chart.id }));
    const { logged } = ns.templates;
    const own = last.logged.names.map((name) => ({
      ...logged, id: name, template: logged.id, title: name.slice(logged.prefix.length),
    }));
    return [...fixed, ...own];
  }

  ns.drawLines = function () {
    if (!last || !ns.templates) return;
    for (const chart of chartList()) if (onScreen.has(chart.id)) drawChart(chart);
  };

  // A chart of which the run has nothing takes no place.
  function placeCharts() {
    for (const chart of ns.templates.charts) {
      const isHidden = !chart.always && !last.charts[chart.id].present;
      ns.byId("plot-" + chart.id).parentElement.hidden = isHidden;
    }
  }

  // Follows the size of a card, and whether it is on screen.
  let observe = null;
  ns.observe = (card) => observe(card);
  // A card that is gone: another one may get its name.
  ns.forgetPlot = function (id) {
    drawn.delete(id);
    onScreen.delete(id);
    keys.delete(id);
  };

  function watchSizes() {
    const resized = new ResizeObserver((entries) => {
      for (const { target } of entries) {
        const id = target.dataset.chart;
        if (drawn.has(id) && target.clientWidth) window.Plotly.Plots.resize(ns.plot(id));
        ns.emit("resized", id);
      }
    });
    const seen = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        onScreen[isIntersecting ? "add" : "delete"](target.dataset.chart);
      }
      ns.later(ns.drawLines);
    });
    observe = (card) => {
      resized.observe(card);
      seen.observe(card);
    };
    for (const card of document.querySelectorAll("[data-chart]")) observe(card);
  }

  ns.startPlots = function () {
    watchSizes();
    ns.on("message", (header) => {
      if (!header.charts) return;
      last = header;
      placeCharts();
      ns.emit("logged", header.logged);
      if (!ns.view.paused || !ns.range) ns.setRange(header.range);
      ns.later(ns.drawLines);
    });
    ns.on("range", () => ns.later(ns.drawLines));
    ns.on("theme", () => ns.later(ns.drawLines));
  };
})(window.nanscope);
