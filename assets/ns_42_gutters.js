// The gutter at the left of a chart: its name, its value under the crosshair with the newest one beside it, and below
// what its other lines and marks are. Values are read from the arrays of the picture.
(function (ns) {
  "use strict";

  const MOST_NAMED = 8;
  const texts = new Map(); // id of a chart -> what the server says its newest value is
  const keys = new Map(); // id of a chart -> what its legend was made from

  ns.labelOf = (chart, name) => chart.labels[name] ?? name.slice(chart.prefix.length);

  // A series keeps its colour when others come and go; those without a place of their own follow in order.
  ns.colourOf = function (chart, fields, name) {
    const own = chart.names.indexOf(name);
    const others = fields.series.filter((each) => !chart.names.includes(each));
    const colours = chart.stacked ? ns.theme().colours.kinds : ns.theme().colours.series;
    return colours[(own >= 0 ? own : chart.names.length + others.indexOf(name)) % colours.length];
  };

  // Index of the point of a series that is nearest to a step; -1 where none is near.
  function nearest(x, at) {
    let low = 0, high = x.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (x[middle] < at) low = middle + 1;
      else high = middle;
    }
    const best = low > 0 && (low === x.length || at - x[low - 1] <= x[low] - at) ? low - 1 : low;
    const apart = x.length > 1 ? (x[x.length - 1] - x[0]) / (x.length - 1) : 1;
    return best < x.length && Math.abs(x[best] - at) <= Math.max(0.5, 1.5 * apart) ? best : -1;
  }

  const badAt = (key, at) => {
    for (const [part, name] of [["nan", "NaN"], ["inf", "Inf"]]) {
      const marks = ns.array(`${key}/${part}/x`);
      const found = nearest(marks, at);
      if (found >= 0 && Math.abs(marks[found] - at) <= 0.5) return name;
    }
    return null;
  };

  // Where a line's newest point lies, finite or not.
  function newestOf(key) {
    const ends = ["line", "nan", "inf"].map((part) => ns.array(`${key}/${part}/x`)).filter((x) => x.length);
    return ends.length ? Math.max(...ends.map((x) => x[x.length - 1])) : null;
  }

  // A line's number at a step, at null its newest; null where there is none, NaN and Inf as themselves.
  function lineNumber(id, name, step) {
    const key = `${id}/${name}`;
    const at = step ?? newestOf(key);
    if (at === null) return null;
    const bad = badAt(key, at);
    if (bad) return bad === "NaN" ? NaN : Infinity;
    const { x, y } = ns.lineWithNewest(id, name), found = nearest(x, at);
    const value = found < 0 ? NaN : y[found];
    return Number.isFinite(value) ? value : null;
  }

  const said = (value) => (value === null ? "\u2013" : Number.isNaN(value) ? "NaN" : value === Infinity ? "Inf" : ns.significant(value));

  // What a line says at a step; at null, its newest value.
  ns.lineValue = (id, name, step) => said(lineNumber(id, name, step));

  // What stands large: of areas on each other their sum, else the first line.
  function largeValue(chart, names, step) {
    if (!names.length) return "\u2013";
    if (!chart.stacked) return ns.lineValue(chart.id, names[0], step);
    const numbers = names.map((name) => lineNumber(chart.id, name, step)).filter((value) => value !== null);
    return said(numbers.length ? numbers.reduce((sum, value) => sum + value, 0) : null);
  }

  function drawValue(chart, fields) {
    const gutter = ns.byId("gutter-" + chart.id);
    const value = gutter.querySelector(".ns-tile-value");
    const step = ns.crosshair();
    const now = texts.get(chart.id) ?? { value: largeValue(chart, fields.series, null), detail: "" };
    const shown = step === null || !fields.series.length ? now.value : largeValue(chart, fields.series, step);
    ns.setText(value, shown);
    ns.setText(gutter.querySelector(".ns-tile-detail"), step === null ? now.detail : `now ${now.value}`);
    gutter.classList.toggle("ns-bad", shown === "NaN" || shown === "Inf");
  }

  // The other lines with their values, marks, and what is pooled, one below the other.
  function legendItems(chart, fields) {
    const { series } = ns.theme().colours;
    const items = [];
    fields.series.slice(0, MOST_NAMED).forEach((name, index) => {
      const colour = ns.colourOf(chart, fields, name);
      const label = ns.labelOf(chart, name);
      if (index === 0 && fields.series.length === 1) return; // the chart's own name and colour
      items.push({ name, text: label, colour, sign: "\u25cf" });
    });
    const rest = fields.series.length - MOST_NAMED;
    if (rest > 0) items.push({ text: `and ${ns.count(rest)} more` });
    for (const [name, text] of Object.entries(fields.marks || {})) {
      if (text) items.push({ text, colour: series[1], sign: chart.marks[name].isCount ? "\u25bc" : "\u25ac" });
    }
    for (const line of ns.overlayLines ? ns.overlayLines(chart.id) : []) items.push({ text: line.label, colour: line.colour, sign: "\u25cf" });
    if (fields.note) items.push({ text: fields.note });
    if (!fields.series.length) items.push({ text: "none recorded in these steps" });
    return items;
  }

  /** @param {{ name?: string, text: string, colour?: string, sign?: string }} item */
  function legendLine({ name, text, colour, sign }) {
    const line = ns.make("div", "ns-legend-line");
    if (colour) {
      const mark = ns.make("span", "", sign + " ");
      mark.style.color = colour;
      line.append(mark);
    }
    line.append(ns.make("span", "ns-legend-name", text));
    if (name) {
      const value = ns.make("span", "ns-legend-value");
      value.dataset.series = name;
      line.append(value);
    }
    ns.setTitle(line, text);
    return line;
  }

  function drawLegend(chart, fields) {
    const holder = ns.byId("legend-" + chart.id);
    const items = legendItems(chart, fields);
    const key = JSON.stringify(items);
    if (keys.get(chart.id) !== key || !holder.childElementCount) {
      keys.set(chart.id, key);
      holder.replaceChildren(...items.map(legendLine));
    }
    drawLineValues(chart.id);
  }

  // Under the crosshair those of its step, else the newest, as old as the large value above them.
  function drawLineValues(id) {
    const step = ns.crosshair(), newest = texts.get(id)?.lines ?? {};
    for (const value of ns.byId("legend-" + id).querySelectorAll("[data-series]")) {
      const { series } = value.dataset;
      ns.setText(value, (step === null && newest[series]) || ns.lineValue(id, series, step));
    }
  }

  ns.drawGutter = function (chart, fields) {
    drawValue(chart, fields);
    drawLegend(chart, fields);
  };

  // The newest values of a track, as the status says it five times a second, also while the charts are held still.
  ns.giveNewest = function (id, tile) {
    texts.set(id, tile);
    const fields = ns.chartFields(id);
    if (!fields) return;
    drawValue(ns.templates.charts.find((chart) => chart.id === id), fields);
    drawLineValues(id);
  };

  // A gutter with its empty places, for charts that the scripts make.
  ns.makeGutter = function (id, title) {
    const gutter = ns.make("div", "ns-gutter");
    gutter.id = "gutter-" + id;
    const line = ns.make("div", "ns-tile-line");
    line.append(ns.make("span", "ns-tile-value", "\u2013"));
    const legend = ns.make("div", "ns-track-legend");
    legend.id = "legend-" + id;
    const name = ns.make("div", "ns-track-name", title);
    ns.setTitle(name, title);
    gutter.append(name, line, ns.make("div", "ns-tile-detail"), legend);
    return gutter;
  };

  ns.startGutters = function () {
    /** @type {{ (): void, run?: string }} */
    const redraw = () => {
      for (const chart of ns.chartList()) {
        const fields = ns.chartFields(chart.id);
        if (fields && ns.painted(chart.id)) ns.drawGutter(chart, fields);
      }
    };
    ns.on("crosshair", () => ns.later(redraw));
    ns.on("view", ({ run }) => { if (run !== redraw.run) { redraw.run = run; texts.clear(); } });
  };
})(window.nanscope);
