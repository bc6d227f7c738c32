// The view Ranks: a row for each rank, a column for some steps, the colour is the distance from the median over ranks of
// the same steps. Here are values, rows and the picture; labels and bars are in ns_58_ranks_rows.js, the strip of all ranks in ns_58_ranks_map.js, the line of the
// picked rank in ns_59_ranks_track.js. Values are described in dashboard/live/ranks.py: minus infinity is "not measured".
(function (ns) {
  "use strict";

  const GAP = 3, LEAST_ROW = 4, MOST_ROW = 48; // CSS pixels
  const NONE = 0, NAN = 1, INF = 2, ZERO = 4, FIRST = 5, SHADES = 256; // codes of cells
  const NEWEST = 16; // columns by whose distances rows are ordered, as in dashboard/page/views/rank_words.py
  const STRONG_PX = 8; // of the hatch where it begins, as in ns_50_heatmap.js
  const shown = { fields: null, rows: [], marked: [], height: 0 };
  ns.ranks = shown;

  ns.isRanks = () => document.body.dataset.tab === "ranks";
  ns.rankColumns = () => ns.array("ranks/steps");
  ns.rankMedian = (column) => ns.array("ranks/values")[column * (shown.fields.ranks.length + 1)];
  ns.rankValue = (at, column) => ns.array("ranks/values")[column * (shown.fields.ranks.length + 1) + 1 + at];
  ns.rankAt = (rank) => shown.fields.ranks.indexOf(rank);
  ns.rankRows = () => shown.rows.filter(ns.rankIsSeen);

  // Distance of a value: log2 of its ratio to the median, or the difference. NaN where there is none.
  ns.rankDistance = function (value, median) {
    if (!Number.isFinite(value) || !Number.isFinite(median)) return NaN;
    if (shown.fields.scale === "difference" || value === median) return value - median;
    return value > 0 && median > 0 ? Math.log2(value / median) : NaN;
  };

  ns.rankDistanceText = function (distance) {
    if (!Number.isFinite(distance)) return "";
    if (shown.fields.scale === "difference") return (distance > 0 ? "+" : "") + ns.significant(distance);
    const ratio = 2 ** Math.abs(distance);
    return (distance < 0 && ratio >= 1.005 ? "\u00f7" : "\u00d7") + (ratio < 10 ? ratio.toFixed(ratio < 1.095 ? 2 : 1) : ns.significant(ratio));
  };

  ns.rankValueText = function (value) {
    if (value === -Infinity || value === undefined) return "not measured";
    if (Number.isNaN(value)) return "NaN";
    return value === Infinity ? "Inf" : ns.quantity(value, shown.fields.unit);
  };

  // The column of a step; -1 outside.
  ns.rankColumnAt = function (step) {
    const starts = ns.rankColumns();
    let low = 0, high = starts.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (starts[middle] <= step) low = middle + 1;
      else high = middle;
    }
    return low && step < starts[low - 1] + shown.fields.stepsPerColumn ? low - 1 : -1;
  };

  // The column that is read out: under the crosshair, else the newest in which most ranks have a value.
  ns.rankColumn = function () {
    const step = ns.crosshair ? ns.crosshair() : null;
    if (step !== null) return ns.rankColumnAt(step);
    const half = shown.fields.ranks.length / 2;
    let column = ns.rankColumns().length - 1;
    for (; column > 0; column--) {
      let measured = 0;
      for (let at = 0; at < shown.fields.ranks.length; at++) if (ns.rankValue(at, column) !== -Infinity) measured++;
      if (measured >= half) break;
    }
    return column;
  };

  // Largest distance of a rank in the newest columns; NaN and Inf are beyond all of them.
  function newestDistance(at) {
    const columns = ns.rankColumns().length;
    let most = -1;
    for (let column = Math.max(0, columns - NEWEST); column < columns; column++) {
      const value = ns.rankValue(at, column);
      if (Number.isNaN(value) || value === Infinity) return Infinity;
      most = Math.max(most, Math.abs(ns.rankDistance(value, ns.rankMedian(column))) || 0);
    }
    return most;
  }

  const ORDERS = {
    distance: (at) => newestDistance(at),
    time: (at) => shown.fields.times.p50[at] ?? -1,
  };

  // Rows from top to bottom with their places. By host, a gap parts the hosts; who has sent nothing is
  // last.
  ns.layRanks = function (room) {
    const { ranks, hosts, present } = shown.fields;
    const measure = Object.hasOwn(ORDERS, ns.view.rankOrder) ? ORDERS[ns.view.rankOrder] : null;
    const firstOf = new Map();
    hosts.forEach((host, at) => { if (!firstOf.has(host)) firstOf.set(host, present[at] ? at : Infinity); });
    const keys = ranks.map((_, at) => (measure ? -measure(at) : firstOf.get(hosts[at])));
    const order = ranks.map((_, at) => at).sort((a, b) => (keys[a] === keys[b] ? a - b : keys[a] - keys[b]));
    const gaps = measure ? 0 : (firstOf.size - 1) * GAP;
    const height = Math.max(LEAST_ROW, Math.min(MOST_ROW, (room - gaps) / ranks.length));
    let top = 0;
    shown.rows = order.map((at, place) => {
      const isNew = !measure && (place === 0 || hosts[at] !== hosts[order[place - 1]]);
      if (isNew && place) top += GAP;
      const row = { at, rank: ranks[at], host: hosts[at], top, height, isNew };
      top += height;
      return row;
    });
    shown.height = top;
    return shown.rows;
  };

  ns.rankRowAt = (y) => shown.rows.find((row) => y >= row.top && y < row.top + row.height) || null;

  function codeOf(value, median, end) {
    if (value === -Infinity) return NONE;
    if (Number.isNaN(value)) return NAN;
    if (value === Infinity) return INF;
    if (value === 0 && median !== 0 && shown.fields.scale === "ratio") return ZERO;
    const distance = Math.abs(ns.rankDistance(value, median));
    return Number.isNaN(distance) ? NONE : FIRST + Math.min(SHADES - 1, Math.round((distance / end) * (SHADES - 1)));
  }

  const isBad = (code) => code === NAN || code === INF || code === (NAN | INF);
  function pool(a, b) {
    if (isBad(a) || isBad(b)) return (isBad(a) ? a : 0) | (isBad(b) ? b : 0);
    return Math.max(a, b);
  }

  // For every pixel the columns that it covers, [from, to).
  function columnsOf(width) {
    const starts = ns.rankColumns(), size = shown.fields.stepsPerColumn;
    const axis = ns.axis();
    const from = new Int32Array(width), to = new Int32Array(width);
    let left = 0, right = 0, high = axis.first;
    for (let x = 0; x < width; x++) {
      const low = high;
      high = axis.at((x + 1) / width);
      while (left < starts.length && starts[left] + size - 0.5 <= low) left++;
      right = Math.max(right, left);
      while (right < starts.length && starts[right] - 0.5 < high) right++;
      from[x] = left;
      to[x] = right;
    }
    return { from, to };
  }

  function rowCodes(at, columns, end, codes, line) {
    const values = ns.array("ranks/values"), stride = shown.fields.ranks.length + 1;
    for (let column = 0; column < codes.length; column++) {
      codes[column] = codeOf(values[column * stride + 1 + at], values[column * stride], end);
    }
    for (let x = 0; x < line.length; x++) {
      let code = NONE;
      for (let column = columns.from[x]; column < columns.to[x]; column++) code = pool(code, codes[column]);
      line[x] = code;
    }
    // A single bad step stays visible however far one has zoomed out.
    const narrow = line.slice();
    for (let x = 0; x < line.length; x++) {
      if (!isBad(narrow[x])) continue;
      for (const near of [x - 1, x + 1]) if (near >= 0 && near < line.length) line[near] = pool(line[near], narrow[x]);
    }
  }

  function palette() {
    const { nan, inf, unmeasured, muted } = ns.theme().colours;
    const stops = ns.templates.cividis.map(ns.packedColour), ground = ns.packedColour(unmeasured);
    const shades = new Uint32Array(FIRST + SHADES);
    shades[NONE] = ground;
    shades[ZERO] = ns.mixColours(ground, ns.packedColour(muted), 0.35);
    for (let shade = 0; shade < SHADES; shade++) {
      const place = (shade / (SHADES - 1)) * (stops.length - 1), left = Math.min(stops.length - 2, Math.floor(place));
      shades[FIRST + shade] = ns.mixColours(stops[left], stops[left + 1], place - left);
    }
    const bad = [nan, inf].map(ns.packedColour).map((colour) => [
      [ns.mixColours(ground, colour, 0.4), colour], [ns.mixColours(ground, colour, 0.12), ns.mixColours(ground, colour, 0.35)],
    ]);
    return { shades, bad };
  }

  // Hatch of NaN, lattice of Inf: strong where it begins, fainter after it.
  function badColour(bad, code, isAfter, x, y) {
    const isNan = (code & NAN) !== 0;
    const isLine = isNan ? (x + y) % 6 < 3 : x % 5 === 0 || y % 5 === 0;
    return bad[isNan ? 0 : 1][isAfter ? 1 : 0][isLine ? 1 : 0];
  }

  // Only the rows in the window are painted: a thousand ranks are many windows tall.
  ns.paintRanks = function (canvas) {
    const scale = window.devicePixelRatio || 1, seen = ns.rankWindow();
    canvas.style.height = seen.height + "px";
    const width = Math.max(1, Math.round(canvas.clientWidth * scale)), height = Math.max(1, Math.round(seen.height * scale));
    if (canvas.width !== width) canvas.width = width;
    if (canvas.height !== height) canvas.height = height;
    const context = canvas.getContext("2d"), image = context.createImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer), { shades, bad } = palette();
    const columns = columnsOf(width), line = new Uint16Array(width), codes = new Uint16Array(ns.rankColumns().length);
    const { scaleEnd } = shown.fields;
    const end = shown.fields.scale === "ratio" ? Math.log2(scaleEnd) : scaleEnd;
    for (const row of ns.rankRows()) {
      rowCodes(row.at, columns, end, codes, line);
      const top = row.top - seen.top;
      const low = Math.max(0, Math.round(top * scale)), high = Math.min(height, Math.round((top + row.height) * scale));
      const hasBad = line.some(isBad); // their hatch differs from line to line of pixels
      for (let y = low; y < high; y++) {
        if (y > low && !hasBad) { pixels.copyWithin(y * width, (y - 1) * width, y * width); continue; }
        for (let x = 0; x < width; x++) {
          const code = line[x];
          const isAfter = x >= STRONG_PX * scale && isBad(line[x - Math.round(STRONG_PX * scale)]);
          pixels[y * width + x] = isBad(code) ? badColour(bad, code, isAfter, x, y) : shades[code];
        }
      }
    }
    context.putImageData(image, 0, 0);
  };
})(window.nanscope);
