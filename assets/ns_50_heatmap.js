// The per-layer heatmap: cells painted on a canvas under Plotly's axes, pooled by maximum to whole pixels.
// Cell codes are described in dashboard/live_view.py: 0 not measured, 1-3 NaN and Inf bits, 4 zero, then log10.
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

  // For every pixel column the columns of the data that it covers, [from, to); none where nothing was measured.
  function columnsOf(width) {
    const starts = ns.array("heatmap/steps");
    const size = map.fields.stepsPerColumn;
    const [first, last] = ns.axisRange();
    const perPixel = (last - first) / width;
    const from = new Int32Array(width), to = new Int32Array(width);
    let left = 0, right = 0;
    for (let x = 0; x < width; x++) {
      const low = first + x * perPixel, high = low + perPixel;
      while (left < starts.length && starts[left] + size - 0.5 <= low) left++;
      if (right < left) right = left;
      while (right < starts.length && starts[right] - 0.5 < high) right++;
      from[x] = left;
      to[x] = right;
    }
    return { from, to };
  }

  function pooledRow({ codes, rows, shown }, columns, low, high, line) {
    for (let x = 0; x < line.length; x++) {
      let code = 0;
      for (let column = columns.from[x]; column < columns.to[x]; column++) {
        for (let row = low; row < high; row++) code = pool(code, codes[column * rows + shown[row]]);
      }
      line[x] = code;
    }
    // A single bad step stays visible however far one has zoomed out: at least three pixels.
    const narrow = line.slice();
    for (let x = 0; x < line.length; x++) {
      if (!isBad(narrow[x])) continue;
      for (const near of [x - 1, x + 1]) if (near >= 0 && near < line.length) line[near] = pool(line[near], narrow[x]);
    }
  }

  // All rows as they were sent, and the codes between which the colours lie.
  function wholePicture() {
    const { rowCount, low, high } = map.fields;
    const codes = ns.array("heatmap/codes");
    return { codes, rows: rowCount, shown: map.shown, low: low ?? FIRST, high: high ?? FIRST + 1 };
  }

  function paint(canvas, width, height) {
    const picture = ns.isLayers() ? ns.layersPicture() : wholePicture();
    const columns = columnsOf(width);
    const colours = colourTable(picture);
    const context = canvas.getContext("2d");
    const image = context.createImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    const line = new Uint16Array(width);
    const bad = badColours(), strong = STRONG_PX * (window.devicePixelRatio || 1);
    let done = -1;
    for (let y = 0; y < height; y++) {
      const low = Math.floor((y * map.shown.length) / height);
      const high = Math.max(low + 1, Math.floor(((y + 1) * map.shown.length) / height));
      if (done !== low * 65536 + high) pooledRow(picture, columns, low, high, line);
      done = low * 65536 + high;
      for (let x = 0; x < width; x++) {
        const code = line[x];
        const isAfter = x >= strong && isBad(line[x - strong]);
        pixels[y * width + x] = isBad(code) ? badColour(bad, code, isAfter, x, y) : colours[code];
      }
    }
    context.putImageData(image, 0, 0);
  }

  // Where the picture lies inside its card, in CSS pixels; few lines of the view Layers do not fill the whole plot.
  ns.heatmapBox = function (isWhole = false) {
    const layout = ns.plot("heatmap") && ns.plot("heatmap")._fullLayout;
    const size = layout && layout._size ? layout._size : null;
    return size && !isWhole && ns.isLayers() ? { ...size, h: Math.min(size.h, ns.linesHeight()) } : size;
  };

  ns.drawHeatmap = function () {
    if (!map.fields || !ns.range || !ns.templates) return;
    const layout = ns.withRange(ns.theme().heatmap);
    if (ns.isLayers()) layout.margin = { ...layout.margin, ...ns.layersMargin() };
    layout.yaxis = { ...layout.yaxis, range: [map.shown.length - 0.5, -0.5] };
    const anchor = { type: "scatter", mode: "markers", x: [ns.range[0]], y: [0], opacity: 0, hoverinfo: "skip" };
    if (!ns.draw("heatmap", [anchor], layout, ns.isLayers() ? JSON.stringify(layout.margin) : map.shown.length)) return;
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
    paint(canvas, width, height);
    ns.emit("heatmap", map);
  };

  function take(header) {
    if (!header.charts) return;
    if (header.heatmap && header.heatmap.rows) {
      map.rows = header.heatmap.rows;
      map.kinds = header.heatmap.kinds;
      map.tensors = header.heatmap.tensors;
      ns.focusRows(map.focus || "");
    }
    map.fields = header.heatmap;
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
    for (const name of ["range", "theme", "resized"]) ns.on(name, () => ns.later(ns.drawHeatmap));
  };
})(window.nanscope);
