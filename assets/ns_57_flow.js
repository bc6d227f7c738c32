// Gradient flow, data only: each row of the heatmap over depth at one step, against its own values before. All from the
// codes that the heatmap holds; drawn by ns_58_flow_view.js. A column may pool several steps by their largest.
(function (ns) {
  "use strict";

  const WINDOW = 200; // measured columns before the step that is shown
  const LEAST = 5; // values without which there is no bar
  const ENDS = [0.05, 0.5, 0.95];
  const { FIRST, CODES, DECADES } = ns.codes;
  const map = ns.heatmap;
  ns.flowWindow = WINDOW;

  ns.isFlow = () => ns.isLayers() && ns.view.flow;
  ns.decadesBetween = (code, other) => ((code - other) / CODES) * DECADES;

  let known = { rows: null, mark: null, found: [] };
  // Layers or modules that the filter leaves, in model order. Parameters are in their layer.
  function rowsOf() {
    const mark = `${ns.layersFilterMark()} ${ns.view.filter}`;
    if (known.rows !== map.rows || known.mark !== mark) {
      const found = ns.filteredRows().filter((row) => map.kinds[row] !== "parameter");
      known = { rows: map.rows, mark, found };
    }
    return known.found;
  }

  const starts = () => ns.array("heatmap/steps");

  function columnOf(step) {
    const steps = starts();
    let low = 0, high = steps.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (steps[middle] <= step) low = middle + 1;
      else high = middle;
    }
    return Math.max(0, low - 1);
  }

  // Without a step the newest column of which anything was measured.
  function shownColumn(codes, rows) {
    const asked = ns.view.at ?? ns.crosshair?.() ?? null;
    if (asked !== null) return columnOf(asked);
    for (let column = starts().length - 1; column >= 0; column--) {
      if (rows.some((row) => codes[column * map.fields.rowCount + row])) return column;
    }
    return starts().length - 1;
  }

  // Between neighbours as numpy does; of ascending values.
  function quantile(values, share) {
    const place = share * (values.length - 1), low = Math.floor(place);
    return values[low] + ((values[low + 1] ?? values[low]) - values[low]) * (place - low);
  }

  const scratch = new Uint16Array(WINDOW);

  function summary(codes, row, column) {
    const count = map.fields.rowCount;
    const now = codes[column * count + row] ?? 0;
    let seen = 0, kept = 0;
    for (let at = column - 1; at >= 0 && seen < WINDOW; at--) {
      const code = codes[at * count + row];
      if (code === 0) continue;
      seen += 1;
      if (code >= FIRST) scratch[kept++] = code;
    }
    const entry = { row, name: map.rows[row], now, count: kept, low: null, median: null, high: null, side: 0 };
    if (kept < LEAST) return entry;
    const values = scratch.subarray(0, kept).sort();
    [entry.low, entry.median, entry.high] = ENDS.map((share) => quantile(values, share));
    if (now >= FIRST) entry.side = now > entry.high ? 1 : now < entry.low ? -1 : 0;
    return entry;
  }

  // First step of the columns up to this one that all have what this one has: NaN or Inf, or zero.
  function since(codes, entry, column) {
    const isSame = (code) => (entry.now === 4 ? code === 4 : ns.isBadCode(code));
    let at = column;
    for (let before = column - 1; before >= 0; before--) {
      const code = codes[before * map.fields.rowCount + entry.row];
      if (code === 0) continue;
      if (!isSame(code)) break;
      at = before;
    }
    return starts()[at];
  }

  // How a picture's largest values went over the steps: what the slider shows.
  function course(codes, rows) {
    const { rowCount } = map.fields;
    return Uint16Array.from(starts(), (_, column) => {
      let code = 0;
      for (const row of rows) code = ns.poolCodes(code, codes[column * rowCount + row]);
      return code;
    });
  }

  // From the first quarter of the layers to the last: how the middle of them changes with depth.
  function shapeOf(entries) {
    const values = entries.filter((entry) => entry.now >= FIRST).map((entry) => entry.now);
    const size = values.length >> 2;
    if (size < 2) return null;
    const middle = (part) => quantile(part.sort((a, b) => a - b), 0.5);
    return ns.decadesBetween(middle(values.slice(-size)), middle(values.slice(0, size)));
  }

  let made = null, madeOf = "", madeCodes = null, madeRows = null, madeAt = 0, cost = 0;

  // What is shown at which step. While steps arrive, thousands of layers are looked at less often: a tenth of the time.
  ns.flow = function () {
    const codes = ns.array("heatmap/codes"), rows = rowsOf();
    const key = [map.fields.statistic, ns.view.at, ns.crosshair?.() ?? null, ns.view.run, ns.view.rank].join();
    const isAsked = key !== madeOf || rows !== madeRows;
    if (!isAsked && codes === madeCodes) return made;
    if (!isAsked && cost > 4 && performance.now() - madeAt < 10 * cost) {
      ns.flowLater(10 * cost);
      return made;
    }
    const began = performance.now();
    const column = shownColumn(codes, rows);
    const entries = rows.map((row) => summary(codes, row, column));
    const marked = (test) => entries.filter(test).map((entry) => ({ ...entry, since: since(codes, entry, column) }));
    const distance = (entry) => Math.abs(ns.decadesBetween(entry.now, entry.side > 0 ? entry.high : entry.low));
    const outside = (side) => entries.filter((entry) => entry.side === side).sort((a, b) => distance(b) - distance(a));
    made = {
      entries, column, steps: starts(), size: map.fields.stepsPerColumn, course: course(codes, rows),
      absent: entries.filter((entry) => entry.now === 0).length, above: outside(1), below: outside(-1), shape: shapeOf(entries),
      bad: marked((entry) => ns.isBadCode(entry.now)), zero: marked((entry) => entry.now === 4),
    };
    [madeOf, madeCodes, madeRows, madeAt] = [key, codes, rows, performance.now()];
    cost = performance.now() - began;
    return made;
  };

  // What a layer has at the step, and how that stands to its bar.
  ns.flowWords = function (entry) {
    const { unit } = ns.statistic();
    const value = (code) => ns.quantity(ns.codeValue(code), unit);
    const now = ns.describeCell(entry.now, 1);
    if (entry.median === null) return `${now}, too few values before it for a bar`;
    const bar = `median ${value(entry.median)}, p5\u2013p95 ${value(entry.low)} to ${value(entry.high)}`;
    const place = entry.now < FIRST ? "" : entry.side > 0 ? ", above its bar" : entry.side < 0 ? ", below its bar" : ", in its bar";
    return `${now}${place}; ${bar}`;
  };

  // [name, words] of every row at a step, for the table of values (ns_83_values.js).
  ns.flowCells = function (step, most) {
    const codes = ns.array("heatmap/codes"), column = columnOf(step);
    const isInside = step < starts()[column] + map.fields.stepsPerColumn;
    return rowsOf().slice(0, most).map((row) => {
      const entry = summary(codes, row, column);
      return [entry.name || "(root)", ns.flowWords(isInside ? entry : { ...entry, now: 0, side: 0 })];
    });
  };
})(window.nanscope);
