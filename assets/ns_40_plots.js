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
    return column ? column.clientWidth - 224 : 800;
  };

  const keys = new Map();

  // Draws one chart; the first time it also starts listening to its zooms. With a key, only when the key, the
  // theme, the axis or the size has changed. Returns whether the chart is on screen.
  ns.draw = function (id, traces, layout, key) {
    const element = ns.plot(id);
    if (!element || !window.Plotly || !element.clientWidth) return false;
    const state = [key, ns.themeName, ns.axisRange(), element.clientWidth, element.clientHeight].join();
    if (key !== undefined && keys.get(id) === state) return true;
    keys.set(id, state);
    window.Plotly.react(element, traces, { ...layout, autosize: true }, CONFIG);
    if (!drawn.has(id)) {
      drawn.add(id);
      element.on("plotly_relayout", (change) => {
        if ("xaxis.range[0]" in change) ns.zoom(change["xaxis.range[0]"], change["xaxis.range[1]"]);
      });
      element.on("plotly_doubleclick", ns.resume);
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

  // Adds the small print at the right of the heading: legend of several lines, and what is pooled.
  function captioned(layout, chart, fields) {
    const colours = ns.theme().colours;
    const parts = [];
    if (fields.series.length > 1) {
      for (const name of fields.series) {
        const colour = colours.series[chart.names.indexOf(name) % colours.series.length];
        parts.push(`<span style="color:${colour}">\u25cf</span> ${chart.labels[name]}`);
      }
    }
    if (fields.note) parts.push(fields.note);
    if (!fields.series.length) parts.push("none recorded in these steps");
    const caption = {
      text: parts.join("   "), x: 1, y: 1, xref: "paper", yref: "paper", xanchor: "right", yanchor: "bottom",
      yshift: 3, showarrow: false, font: { size: 11, color: colours.muted },
    };
    return { ...layout, annotations: [...layout.annotations, caption] };
  }

  // A log axis only where values differ enough (dashboard/views/charts.py: is_wide); no scale without values.
  function scaled(layout, chart, fields) {
    if (!fields.series.length) return { ...layout, yaxis: { ...layout.yaxis, showticklabels: false } };
    if (!chart.log) return layout;
    let low = Infinity, high = 0;
    for (const name of fields.series) {
      for (const value of ns.array(`${chart.id}/${name}/line/y`)) {
        if (value > 0 && value < Infinity) { low = Math.min(low, value); high = Math.max(high, value); }
      }
    }
    if (high <= ns.templates.logRatio * low) return layout;
    return { ...layout, yaxis: { ...layout.yaxis, ...ns.theme().logAxis } };
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

  function drawChart(chart) {
    const fields = last.charts[chart.id];
    const styles = ns.theme().traces;
    const traces = [];
    for (const name of fields.series) {
      for (const part of ns.templates.parts) {
        const key = `${chart.id}/${name}/${part}`;
        const x = ns.array(key + "/x");
        const isShort = part === "line" && x.length <= FEW_POINTS;
        const mode = isShort ? { mode: "lines+markers" } : {};
        if (x.length || part === "line") traces.push({ ...styles[key], ...mode, x, y: ns.array(key + "/y") });
      }
    }
    const layout = scaled(ns.withRange(ns.theme().layouts[chart.id]), chart, fields);
    ns.draw(chart.id, traces, { ...captioned(layout, chart, fields), shapes: gapShapes(last) });
  }

  ns.drawLines = function () {
    if (!last || !ns.templates) return;
    for (const chart of ns.templates.charts) if (onScreen.has(chart.id)) drawChart(chart);
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
    for (const card of document.querySelectorAll("[data-chart]")) {
      resized.observe(card);
      seen.observe(card);
    }
  }

  ns.startPlots = function () {
    watchSizes();
    ns.on("message", (header) => {
      if (!header.charts) return;
      last = header;
      if (!ns.view.paused || !ns.range) ns.setRange(header.range);
      ns.later(ns.drawLines);
    });
    ns.on("range", () => ns.later(ns.drawLines));
    ns.on("theme", () => ns.later(ns.drawLines));
  };
})(window.nanscope);
