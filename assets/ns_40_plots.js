// The line charts: which there are, where each lies in its card, and what it shows of the newest picture. They share
// one step axis (ns_38_axis.js) and are painted by ns_39_painter.js, at most once a frame.
(function (ns) {
  "use strict";

  const FEW_POINTS = 3; // as in dashboard/page/views/charts.py: a line of so few needs dots
  const GUTTER_PX = 180, RIGHT_PX = 16; // names and values at the left, and room at the right
  const NARROW = { gutter: 72, right: 8, head: 22, legend: 32 }; // on a phone the name stands above, and what is stacked
  const TOP_PX = 12, FOOT_PX = 22;
  const HEATMAP_TOP_PX = 24;
  const narrow = window.matchMedia("(max-width: 600px)");
  const sizes = new Map(); // id of a card that is laid out -> {width, height}
  const onScreen = new Set();
  const painted = new Map(); // id -> what is on its canvas
  let last = null; // newest header that carried data

  ns.theme = () => ns.templates.themes[ns.themeName];
  ns.plot = (id) => ns.byId("plot-" + id);
  ns.isNarrow = () => narrow.matches;
  // What a chart shows now: {box, axis, scale, lines, areas, bands, marks}; undefined before it is painted.
  ns.painted = (id) => painted.get(id);

  // Of the column that holds the charts, because before the first message they are hidden and have no width.
  ns.plotWidth = function () {
    const column = document.querySelector(".ns-main");
    const sides = ns.isNarrow() ? NARROW.gutter + NARROW.right : GUTTER_PX + RIGHT_PX;
    return column ? column.clientWidth - sides : 800;
  };

  const FOOT = "timeline"; // the last of the tracks, which has the axis for all of them
  ns.isTrack = (id) => id === "heatmap" || id === FOOT || ns.templates.tracks.includes(id);
  ns.hasFoot = (id) => (id === "heatmap" ? ns.isLayers() : id === FOOT || !ns.isTrack(id));

  const isStacked = (id) => ns.templates.charts.some((chart) => chart.id === id && chart.stacked);

  // Where a chart's plot lies in its card, in CSS pixels: {l, t, w, h}; null while it is not laid out.
  ns.boxOf = function (id) {
    const size = sizes.get(id);
    if (!size || !size.width) return null;
    let l = GUTTER_PX, r = RIGHT_PX, t = id === FOOT ? 0 : TOP_PX, b = ns.hasFoot(id) ? FOOT_PX : 1;
    if (ns.isNarrow()) {
      l = NARROW.gutter;
      r = NARROW.right;
      if (id !== FOOT) t += NARROW.head + (isStacked(id) ? NARROW.legend : 0);
    }
    if (id === "heatmap") ({ l, r, t, b } = ns.isLayers() ? ns.layersMargin() : { l, r, t: HEATMAP_TOP_PX, b });
    return { l, t, w: Math.max(1, size.width - l - r), h: Math.max(1, size.height - t - b) };
  };

  // The canvas of a chart, made when it is first drawn.
  ns.canvasOf = function (id) {
    const plot = ns.plot(id);
    let canvas = plot.querySelector("canvas");
    if (!canvas) {
      canvas = ns.make("canvas", "ns-plot-canvas");
      canvas.setAttribute("aria-hidden", "true");
      plot.prepend(canvas);
      ns.emit("first-draw", id);
    }
    const { width, height } = sizes.get(id);
    Object.assign(canvas.style, { width: width + "px", height: height + "px" });
    return ns.freshContext(canvas, width, height);
  };

  // Smallest and largest finite value of what is drawn, and smallest positive one.
  ns.limitsOf = function (arrays) {
    let lowest = Infinity, positive = Infinity, highest = -Infinity;
    for (const values of arrays) {
      for (const value of values) {
        if (!Number.isFinite(value)) continue;
        if (value < lowest) lowest = value;
        if (value > highest) highest = value;
        if (value > 0 && value < positive) positive = value;
      }
    }
    return { lowest, positive, highest };
  };

  // A log scale only where values differ enough (dashboard/page/views/charts.py: is_wide), or where one is wished.
  function scaleOf(chart, lines, areas) {
    if (chart.stacked) return ns.fittedScale({ ...ns.limitsOf(areas.map((area) => area.high)), lowest: 0 }, false);
    const limits = ns.limitsOf([...lines.map((line) => line.y), ...areas.flatMap((area) => [area.low, area.high])]);
    const isWide = chart.log && limits.highest > ns.templates.logRatio * limits.positive;
    const isLog = isWide || (ns.view.log && limits.lowest > 0);
    const inner = ns.innerLimits(lines.flatMap((line) => [...line.y]));
    return ns.fittedScale(inner ? { lowest: inner[0], positive: inner[0], highest: inner[1] } : limits, isLog && !(inner && inner[0] <= 0));
  }

  // Half of the steps that a point stands for.
  const halfOf = (x) => (x.length > 1 ? Math.max(0.5, (x[x.length - 1] - x[0]) / (x.length - 1) / 2) : 0.5);

  /** @returns {{ lines: ChartLine[], areas: ChartArea[], bands: ChartPicture["bands"] }} */
  function linesOf(chart, fields) {
    const lines = [], areas = [], bands = [];
    for (const name of fields.series) {
      const key = `${chart.id}/${name}/`;
      const colour = ns.colourOf(chart, fields, name);
      const { x, y } = ns.lineWithNewest(chart.id, name);
      const label = ns.labelOf(chart, name), half = halfOf(x);
      lines.push({ name, label, x, y, colour, hasDots: x.length <= FEW_POINTS });
      const low = ns.array(key + "low/y"), high = ns.array(key + "high/y");
      if (low.length && low.length === high.length) areas.push({ x: ns.array(key + "low/x"), low, high, colour });
      for (const kind of ["nan", "inf"]) {
        const at = ns.array(`${key}${kind}/x`);
        if (at.length) bands.push({ kind, x: at, half });
      }
    }
    return { lines, areas, bands };
  }

  function marksOf(chart, fields) {
    return Object.keys(fields.marks || {}).map((name) => {
      const { isCount } = chart.marks[name];
      return { name, isBar: !isCount, colour: ns.theme().colours.series[1], x: ns.array(`${chart.id}/${name}/mark/x`) };
    });
  }

  // What is to be painted of a chart.
  function described(chart, fields) {
    const box = ns.boxOf(chart.id);
    let { lines, areas, bands } = linesOf(chart, fields);
    if (chart.stacked) areas = ns.stacked(lines);
    const extra = ns.overlayLines ? ns.overlayLines(chart.id) : [];
    const scale = scaleOf(chart, [...lines, ...extra], areas);
    return {
      id: chart.id, box, axis: ns.axis(), scale, colours: ns.theme().colours,
      yTicks: lines.length + extra.length ? ns.yTicks(scale, box.h) : [], xTicks: ns.axisTicks(box.w), hasFoot: ns.hasFoot(chart.id),
      lines: chart.stacked ? [] : [...extra, ...lines.flatMap(ns.smoothedLines)], areas, bands, marks: marksOf(chart, fields),
      gaps: last.gaps, breaks: last.breaks || [], crosshair: ns.isTrack(chart.id) ? null : ns.crosshair(),
    };
  }

  ns.drawChart = drawChart;
  function drawChart(chart) {
    const fields = last.charts[chart.id];
    if (!fields || !ns.boxOf(chart.id)) return;
    const description = described(chart, fields);
    ns.paintChart(ns.canvasOf(chart.id), description);
    painted.set(chart.id, description);
    ns.drawGutter(chart, fields);
  }

  // The charts of the page from top to bottom; those of the user's own series are named by the message.
  ns.chartList = function () {
    const { charts, logged } = ns.templates;
    const own = last ? last.logged.names : [];
    return [...charts, ...own.map((name) => ({ ...logged, id: name, title: name.slice(logged.prefix.length) }))];
  };
  ns.chartFields = (id) => (last ? last.charts[id] : undefined);

  ns.isOnScreen = (id) => onScreen.has(id);
  ns.drawLines = function () {
    if (!last || !ns.templates) return;
    for (const chart of ns.chartList()) if (onScreen.has(chart.id)) drawChart(chart);
  };

  // A chart of which the run has nothing takes no place.
  function placeCharts() {
    for (const chart of ns.templates.charts) {
      const isHidden = !chart.always && !last.charts[chart.id].present;
      ns.plot(chart.id).parentElement.hidden = isHidden;
    }
  }

  // Follows the size of a card, and whether it is on screen.
  let observe = null;
  ns.observe = (card) => observe(card);
  // A card that is gone: another one may get its name.
  ns.forgetPlot = function (id) {
    for (const held of [sizes, onScreen, painted]) held.delete(id);
  };

  function watchSizes() {
    const resized = new ResizeObserver((entries) => {
      for (const { target, contentRect } of entries) {
        sizes.set(target.dataset.chart, { width: contentRect.width, height: contentRect.height });
        ns.emit("resized", target.dataset.chart);
      }
      ns.later(ns.drawLines);
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
    for (const name of ["range", "theme"]) ns.on(name, () => ns.later(ns.drawLines));
    ns.on("crosshair", () => { if ([...onScreen].some((id) => !ns.isTrack(id))) ns.later(ns.drawLines); });
  };
})(window.nanscope);
