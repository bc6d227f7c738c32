// Cells of the view Layers: the codes of a line, and the same relative to its row or to its row's own past, as codes
// between which the one colour map lies (ns_50_heatmap.js).
(function (ns) {
  "use strict";

  const { FIRST, CODES, DECADES } = ns.codes;
  const PAST = [Math.log10(1 / 4), Math.log10(16)];
  const all = new Map(), relative = new Map(); // path of a line -> its codes; of one message
  let shownArray = null, scale = null;

  function refresh() {
    const codes = ns.array("heatmap/codes");
    if (codes !== shownArray) { all.clear(); relative.clear(); }
    if (ns.view.scale !== scale) relative.clear();
    shownArray = codes;
    scale = ns.view.scale;
    return codes;
  }

  ns.forgetLines = () => { all.clear(); relative.clear(); };

  /** @param {LayersLine} line */
  const keyOf = (line) => line.rows[0] + "/" + line.rows.length;

  // Codes by column; of several rows the largest.
  ns.lineCodes = function (line) {
    const codes = refresh();
    const key = keyOf(line);
    if (all.has(key)) return all.get(key);
    const { rowCount } = ns.heatmap.fields;
    const columns = ns.array("heatmap/steps").length;
    const found = new Uint16Array(columns);
    for (let column = 0; column < columns; column++) {
      let code = 0;
      for (const row of line.rows) code = ns.poolCodes(code, codes[column * rowCount + row]);
      found[column] = code;
    }
    all.set(key, found);
    return found;
  };

  const isValue = (code) => code >= FIRST;
  const placed = (share) => FIRST + Math.round(Math.max(0, Math.min(1, share)) * CODES);

  // Each row's own 1st to 99th percentile.
  ns.ownRange = function (codes) {
    const values = codes.filter(isValue).sort();
    const low = values[Math.floor(0.01 * (values.length - 1))] ?? FIRST;
    const high = values[Math.ceil(0.99 * (values.length - 1))] ?? FIRST + 1;
    return [low, Math.max(low + 1, high)];
  };
  /** @param {Uint16Array} codes */
  function perRow(codes) {
    const [low, high] = ns.ownRange(codes);
    return codes.map((code) => (isValue(code) ? placed((code - low) / (high - low)) : code));
  }

  // Difference to the median of the values before; the first one has no past, so it is its own.
  /** @param {Uint16Array} codes */
  function ownPast(codes) {
    const before = new Uint16Array(codes.length);
    let count = 0;
    return codes.map((code) => {
      if (!isValue(code)) return code;
      const median = count ? (before[(count - 1) >> 1] + before[count >> 1]) / 2 : code;
      let low = 0, high = count;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (before[middle] <= code) low = middle + 1;
        else high = middle;
      }
      before.copyWithin(low + 1, low, count);
      before[low] = code;
      count += 1;
      const decades = ((code - median) / CODES) * DECADES;
      return placed((decades - PAST[0]) / (PAST[1] - PAST[0]));
    });
  }
  /** @type {Record<string, (codes: Uint16Array) => Uint16Array>} */
  const SCALES = { row: perRow, past: ownPast };

  ns.scaledCodes = function (line) {
    const codes = ns.lineCodes(line);
    if (!Object.hasOwn(SCALES, ns.view.scale)) return codes;
    const key = keyOf(line);
    if (!relative.has(key)) relative.set(key, SCALES[ns.view.scale](codes));
    return relative.get(key);
  };

  // The lines on screen as a picture of their own.
  ns.layersPicture = function () {
    const lines = ns.visibleLines();
    const isRelative = Object.hasOwn(SCALES, ns.view.scale);
    const { low, high } = ns.heatmap.fields;
    return {
      row: (at) => ns.scaledCodes(lines[at]), count: lines.length,
      low: isRelative ? FIRST : low ?? FIRST, high: isRelative ? FIRST + CODES : high ?? FIRST + 1,
    };
  };

  // The column whose values are named: under the crosshair, else the newest.
  ns.layersColumn = function () {
    const starts = ns.array("heatmap/steps");
    const step = ns.layersColumn.asked();
    if (step === null) return starts.length - 1;
    let at = 0;
    while (at + 1 < starts.length && starts[at + 1] <= step) at++;
    return at;
  };
  ns.layersColumn.asked = () => (ns.crosshair ? ns.crosshair() : null);

  // What the ends of the colours stand for, and of what.
  ns.scaleWords = function (short) {
    if (ns.view.scale === "row") return ["low", "high", "of each row's own 1st to 99th percentile"];
    if (ns.view.scale === "past") return ["\u00d7\u00bc", "\u00d716", "of the median of the row's earlier steps on screen"];
    const { low, high } = ns.heatmap.fields;
    return low === null ? null : [ns.statistic().isCount ? "0" : short(low), short(high), ""];
  };
})(window.nanscope);
