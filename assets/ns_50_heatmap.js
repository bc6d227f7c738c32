// The per-layer heatmap: cells painted on a canvas, pooled by maximum to whole pixels. Cell codes are described in
// dashboard/live/view.py: 0 not measured, 1-3 NaN and Inf bits, 4 zero, then log10.
(function (ns) {
  "use strict";

  const FIRST = 5, CODES = 65535 - FIRST, LOW = -46, HIGH = 39;
  const map = { rows: [], kinds: [], shown: [], fields: null };
  ns.heatmap = map;
  let table = null, tableKey = ""; // code -> packed RGBA

  ns.codeValue = (code) => (code === 4 ? 0 : 10 ** (LOW + ((code - FIRST) / CODES) * (HIGH - LOW)));

  function rgba(hex) {
    const number = parseInt(hex.slice(1), 16);
    return ((255 << 24) | ((number & 255) << 16) | (((number >> 8) & 255) << 8) | (number >> 16)) >>> 0;
  }

  function mix(from, to, share) {
    let packed = 255 << 24;
    for (const bits of [0, 8, 16]) {
      const a = (from >> bits) & 255, b = (to >> bits) & 255;
      packed |= Math.round(a + (b - a) * share) << bits;
    }
    return packed >>> 0;
  }

  ns.isBadCode = (code) => code > 0 && code < 4;
  ns.poolCodes = pool;
  ns.codes = { FIRST, CODES, DECADES: HIGH - LOW };

  function colourTable({ low, high }) {
    const key = `${ns.themeName} ${low} ${high}`;
    if (key === tableKey) return table;
    const stops = ns.templates.cividis.map(rgba);
    table = new Uint32Array(65536);
    table[0] = rgba(ns.theme().colours.unmeasured);
    table[4] = stops[0];
    for (let code = FIRST; code < 65536; code++) {
      const at = Math.max(0, Math.min(1, (code - low) / (high - low))) * (stops.length - 1);
      const left = Math.min(stops.length - 2, Math.floor(at));
      table[code] = mix(stops[left], stops[left + 1], at - left);
    }
    tableKey = key;
    return table;
  }

  // NaN has stripes, Inf a lattice, in a colour of their own: told apart without seeing the colours. Strong where it
  // begins, fainter after it: what came before stays the picture.
  const STRONG_PX = 8;
  function badColours() {
    const { nan, inf, unmeasured } = ns.theme().colours;
    const ground = rgba(unmeasured);
    return [nan, inf].map(rgba).map((colour) => [
      [mix(ground, colour, 0.4), colour], [mix(ground, colour, 0.12), mix(ground, colour, 0.35)],
    ]);
  }
  function badColour(colours, code, isAfter, x, y) {
    const isNan = (code & 1) !== 0;
    const isLine = isNan ? (x + y) % 6 < 3 : x % 5 === 0 || y % 5 === 0;
    return colours[isNan ? 0 : 1][isAfter ? 1 : 0][isLine ? 1 : 0];
  }

  // What is on screen; before the first message what the page begins with.
  ns.statistic = function () {
    const shown = map.fields ? map.fields.statistic : ns.view.heatmap;
    return ns.templates.statistics.find((each) => each.id === shown) || ns.templates.statistics[0];
  };

  const isBad = ns.isBadCode;
  function pool(a, b) {
    if (isBad(a) || isBad(b)) return (isBad(a) ? a : 0) | (isBad(b) ? b : 0);
    return a > b ? a : b;
  }

  // For every pixel from x0 on the columns of the data that it covers, [from, to); none where nothing was measured.
  function columnsOf(x0, width) {
    const starts = ns.array("heatmap/steps");
    const size = map.fields.stepsPerColumn;
    const axis = ns.axis();
    const from = new Int32Array(width - x0), to = new Int32Array(width - x0);
    let left = 0, right = 0, low = axis.at(x0 / width);
    for (let x = x0; x < width; x++) {
      const high = axis.at((x + 1) / width);
      while (left < starts.length && starts[left] + size - 0.5 <= low) left++;
      if (right < left) right = left;
      while (right < starts.length && starts[right] - 0.5 < high) right++;
      from[x - x0] = left;
      to[x - x0] = right;
      low = high;
    }
    return { from, to };
  }

  let across = new Uint16Array(0);

  // The codes of a line of pixels: of the rows [first, last), the largest of the columns below each pixel.
  function pooledRow(row, first, last, columns, line) {
    const left = columns.from[0], right = columns.to[line.length - 1];
    let codes = row(first);
    if (last - first > 1) {
      if (across.length < codes.length) across = new Uint16Array(2 * codes.length);
      for (let column = left; column < right; column++) across[column] = codes[column];
      for (let at = first + 1; at < last; at++) {
        const next = row(at);
        for (let column = left; column < right; column++) {
          const a = across[column], b = next[column];
          if (a < 4 || b < 4) across[column] = pool(a, b);
          else if (b > a) across[column] = b;
        }
      }
      codes = across;
    }
    for (let x = 0; x < line.length; x++) {
      const begin = columns.from[x], end = columns.to[x];
      let code = begin < end ? codes[begin] : 0;
      for (let column = begin + 1; column < end; column++) code = pool(code, codes[column]);
      line[x] = code;
    }
  }

  // A single bad step stays visible however far one has zoomed out: at least three pixels.
  function widenBad(line) {
    let hasBad = false;
    for (const code of line) if (code > 0 && code < 4) { hasBad = true; break; }
    if (!hasBad) return false;
    const narrow = line.slice();
    for (let x = 0; x < line.length; x++) {
      if (!isBad(narrow[x])) continue;
      for (const near of [x - 1, x + 1]) if (near >= 0 && near < line.length) line[near] = pool(line[near], narrow[x]);
    }
    return true;
  }

  // All rows as they were sent, and the codes between which the colours lie.
  function wholePicture() {
    const { low, high } = map.fields;
    const { shown } = map;
    return { row: (at) => ns.heatRow(shown[at]), count: shown.length, low: low ?? FIRST, high: high ?? FIRST + 1 };
  }

  // Paints from pixel x0 on. Neighbouring lines of pixels that show the same rows are painted once.
  function paint(context, x0, width, height) {
    const picture = ns.isLayers() ? ns.layersPicture() : wholePicture();
    if (!picture.count) return context.clearRect(0, 0, width, height);
    const strong = Math.round(STRONG_PX * (window.devicePixelRatio || 1));
    const start = Math.max(0, x0 - strong - 2); // what is left of it decides how it looks
    const columns = columnsOf(start, width);
    const colours = colourTable(picture), bad = badColours();
    const image = context.createImageData(width - start, height);
    const pixels = new Uint32Array(image.data.buffer);
    const span = width - start, line = new Uint16Array(span);
    let done = -1, hasBad = false;
    for (let y = 0; y < height; y++) {
      const low = Math.floor((y * picture.count) / height);
      const high = Math.max(low + 1, Math.floor(((y + 1) * picture.count) / height));
      const key = low * 65536 + high, to = y * span;
      if (done === key && !hasBad) { pixels.copyWithin(to, to - span, to); continue; }
      if (done !== key) {
        pooledRow(picture.row, low, high, columns, line);
        hasBad = widenBad(line);
        done = key;
      }
      if (!hasBad) for (let x = 0; x < span; x++) pixels[to + x] = colours[line[x]];
      else {
        for (let x = 0; x < span; x++) {
          const code = line[x];
          pixels[to + x] = isBad(code) ? badColour(bad, code, x >= strong && isBad(line[x - strong]), x + start, y) : colours[code];
        }
      }
    }
    context.putImageData(image, start, 0, x0 - start, 0, width - x0, height);
  }

  // Where the picture lies inside its card, in CSS pixels; few lines of the view Layers do not fill the whole plot.
  ns.heatmapBox = function (isWhole = false) {
    const box = ns.boxOf("heatmap");
    return box && !isWhole && ns.isLayers() ? { ...box, h: Math.min(box.h, ns.linesHeight()) } : box;
  };

  // What the canvas shows: where only newer columns have come, only they are painted.
  let onCanvas = { key: "", first: 0, count: 0 };
  function firstNewPixel(canvas, width) {
    const { fields } = map, axis = ns.axis(), steps = ns.array("heatmap/steps");
    const key = [
      canvas.width, canvas.height, axis.first, axis.last, axis.isTime, ns.themeName, fields.low, fields.high,
      fields.statistic, fields.stepsPerColumn, map.shown.join(), ns.isLayers(),
    ].join();
    const isSame = steps.length > 0 && key === onCanvas.key && steps[0] === onCanvas.first && !axis.isTime && !ns.isLayers();
    // The newest column that was there may have been filled up since.
    const from = isSame ? axis.of(steps[Math.max(0, Math.min(onCanvas.count, ns.heatKept()) - 1)] - 0.5) * width : 0;
    onCanvas = { key, first: steps[0], count: steps.length };
    ns.heatSeen();
    return Math.max(0, Math.min(width - 1, Math.floor(from) - 2));
  }

  ns.drawHeatmap = function () {
    if (!map.fields || !ns.range || !ns.templates || !ns.boxOf("heatmap")) return;
    if (ns.stretchHeatmap()) return;
    const begun = performance.now();
    ns.syncHeatRows();
    if (ns.isFlow()) return ns.drawFlow();
    if (ns.isLayers()) ns.chooseLines(ns.heatmapBox(true));
    const box = ns.heatmapBox();
    const canvas = ns.byId("heatmap-canvas");
    const scale = window.devicePixelRatio || 1;
    const width = Math.max(1, Math.round(box.w * scale)), height = Math.max(1, Math.round(box.h * scale));
    Object.assign(canvas.style, {
      left: box.l + "px", top: box.t + "px", width: box.w + "px", height: box.h + "px",
    });
    if (canvas.width !== width) canvas.width = width;
    if (canvas.height !== height) canvas.height = height;
    if (ns.isLayers()) {
      const axes = ns.canvasOf("heatmap");
      axes.font = ns.FONT;
      ns.paintFoot(axes, { box, colours: ns.theme().colours, xTicks: ns.axisTicks(box.w), hasFoot: true, hasLines: false });
    }
    const from = firstNewPixel(canvas, width);
    paint(canvas.getContext("2d"), from, width, height);
    ns.heatmapPainted(performance.now() - begun, from === 0);
    ns.emit("heatmap", map);
  };

  function take(header) {
    if (!header.charts) return;
    if (header.heatmap && header.heatmap.rows !== map.taken) {
      const { rows, kinds, tensors } = header.heatmap;
      Object.assign(map, { rows, kinds, tensors, taken: rows });
      ns.focusRows(map.focus || "");
    }
    map.fields = header.heatmap && ns.withSteadyScale(header.heatmap, map.fields);
    ns.forgetPainted();
    ns.later(ns.drawHeatmap);
  }

  // Shows only the rows of one module path; "" shows all.
  ns.focusRows = function (path) {
    const inside = (name) => !path || name === path || name.startsWith(path + ".");
    const shown = map.rows.map((_, row) => row).filter((row) => inside(map.rows[row]));
    map.focus = shown.length ? path : "";
    map.shown = shown.length ? shown : map.rows.map((_, row) => row);
  };

  ns.startHeatmap = function () {
    ns.on("message", take);
    for (const name of ["theme", "resized"]) ns.on(name, ns.forgetPainted);
    for (const name of ["range", "rest", "theme", "resized", "axis"]) ns.on(name, () => ns.later(ns.drawHeatmap));
  };
})(window.nanscope);
