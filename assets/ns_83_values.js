// The values that the canvases show at one step, as a table (t): every line on screen, and the heatmap's rows. Left and
// right move the step, which is read out.
(function (ns) {
  "use strict";

  const MOST_ROWS = 500;
  const READ = 3; // values that are read out with a step
  /** @type {Header | null} */
  let header = null; // newest message that carried data
  /** @type {number[]} */
  let steps = [];
  let at = 0;

  // What is folded away has a width, too.
  const isSeen = (id) => Boolean(ns.plot(id)?.checkVisibility());

  function number(value) {
    const size = Math.abs(value);
    return size === 0 || (size >= 1e-3 && size < 1e6) ? String(Number(value.toPrecision(5))) : value.toExponential(3);
  }

  // The place in ascending numbers of the last one at or before a step, -1 without.
  /** @param {ArrayLike<number>} numbers @param {number} step */
  function placeOf(numbers, step) {
    let low = 0, high = numbers.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (numbers[middle] <= step) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  // [chart id, series, label, unit] of every line that can be seen.
  function lines() {
    const { charts, logged } = ns.templates;
    const fixed = charts.filter((chart) => header.charts[chart.id] && isSeen(chart.id)).flatMap((chart) =>
      header.charts[chart.id].series.map((name) => [chart.id, name, chart.labels[name] ?? name, chart.unit]));
    const own = header.logged.names.filter(isSeen).map((name) => [name, name, name.slice(logged.prefix.length), ""]);
    return [...fixed, ...own];
  }

  // A value of NaN or Inf stands in the series's own part (dashboard/page/views/charts.py).
  function badAt(key, step) {
    const hit = ["nan", "inf"].filter((part) => {
      const x = ns.array(`${key}/${part}/x`);
      return Math.round(x[placeOf(x, step + 0.5)]) === step;
    });
    return hit.length ? hit.map((part) => (part === "nan" ? "NaN" : "Inf")).join(" and ") : null;
  }

  /** @param {string[]} line @param {number} step */
  function valueAt([chart, name, , unit], step) {
    const key = `${chart}/${name}`;
    const bad = badAt(key, step);
    if (bad) return bad;
    const x = ns.array(key + "/line/x"), y = ns.array(key + "/line/y");
    const place = placeOf(x, step + 0.5);
    if (place < 0 || !Number.isFinite(y[place])) return "not measured";
    const when = Math.round(x[place]) === step ? "" : ` (step ${ns.count(x[place])})`;
    return `${number(y[place])}${unit ? " " + unit : ""}${when}`;
  }

  function cells(step) {
    if (ns.isRanks()) return ns.ranks.fields ? ns.rankCells(step) : [];
    if (ns.view.tab === "profile") return ns.icicleCells(MOST_ROWS);
    const { fields, rows, shown } = ns.heatmap;
    if (!fields || !(isSeen("heatmap") || ns.isFlow())) return [];
    if (ns.isFlow()) return ns.flowCells(step, MOST_ROWS);
    const starts = ns.array("heatmap/steps");
    const column = placeOf(starts, step);
    const isInside = column >= 0 && step < starts[column] + fields.stepsPerColumn;
    const codes = ns.array("heatmap/codes");
    return shown.slice(0, MOST_ROWS).map((row) => [
      rows[row] || "(root)", ns.describeCell(isInside ? codes[column * fields.rowCount + row] : 0, fields.stepsPerColumn),
    ]);
  }

  function titleOfRows() {
    if (ns.view.tab === "profile") return ns.icicleTitle();
    return ns.isRanks() ? ns.byId("ranks-select").selectedOptions[0].textContent : ns.statistic().title;
  }

  /** @param {string[]} pair name and value */
  function row([name, value]) {
    const line = ns.make("tr");
    const head = ns.make("th", "", name);
    head.scope = "row";
    line.append(head, ns.make("td", "", value));
    return line;
  }

  function draw() {
    const step = steps[at];
    const ofLines = lines().map((line) => [line[2], valueAt(line, step)]);
    const ofRows = cells(step);
    const title = `Step ${ns.count(step)}`;
    const all = ns.isRanks() || ns.view.tab === "profile" ? ofRows.length : ns.heatmap.shown.length;
    const cut = ofRows.length < all && ofRows.length ? `, the first ${ns.count(ofRows.length)} of ${ns.count(all)} rows` : "";
    ns.setText(ns.byId("values-step"), title + cut);
    ns.setText(ns.byId("values-rows-title"), ofRows.length ? titleOfRows() : "");
    ns.byId("values-lines").replaceChildren(...ofLines.map(row));
    ns.byId("values-rows").replaceChildren(...ofRows.map(row));
    const read = [...ofLines, ...ofRows].slice(0, READ).map(([name, value]) => `${name} ${value}`);
    ns.setText(ns.byId("values-said"), [title, ...read].join(", "));
    ns.byId("values-before").disabled = at === 0;
    ns.byId("values-after").disabled = at === steps.length - 1;
  }

  function move(by) {
    at = Math.max(0, Math.min(steps.length - 1, at + by));
    draw();
  }

  // Steps of which something is on screen.
  function knownSteps() {
    const [first, end] = ns.range;
    const found = new Set(ns.array(ns.isRanks() ? "ranks/steps" : "heatmap/steps"));
    for (const [chart, name] of lines()) for (const x of ns.array(`${chart}/${name}/line/x`)) found.add(Math.round(x));
    return [...found].filter((step) => step >= first && step < end).sort((a, b) => a - b);
  }

  ns.openValues = function () {
    if (header === null || !ns.range || document.querySelector("dialog[open]")) return;
    steps = knownSteps();
    if (!steps.length) return;
    at = Math.max(0, placeOf(steps, (ns.isFlow() ? ns.view.at : ns.crosshair?.()) ?? Infinity));
    ns.byId("values").showModal();
    draw();
  };

  ns.startValues = function () {
    const dialog = ns.byId("values");
    ns.on("message", (message) => { if (message.charts && message.run === ns.view.run) header = message; });
    dialog.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
      if (by === undefined) return;
      event.preventDefault();
      move(by);
    });
    ns.byId("values-before").addEventListener("click", () => move(-1));
    ns.byId("values-after").addEventListener("click", () => move(1));
    ns.byId("values-close").addEventListener("click", () => dialog.close());
  };
})(window.nanscope);
