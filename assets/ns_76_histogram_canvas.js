// Paints the histograms of one tensor over time: a column for each stored one, its log2 magnitudes from bottom to top,
// colour is the share of the elements; over it the ranges of fp16, bf16 and fp8. Bins and formats come from
// dashboard/page/views/magnitude_facts.py; ns_77_tensor_histograms.js says what and where.
(function (ns) {
  "use strict";

  const HEIGHT = 196, LEFT = 34, RULER = 50, SPECIAL = 9, GAP = 3;
  const LEAST = -5; // decades of the faintest share that has a colour of its own
  const WIDEST = 40; // pixels of a column

  const total = (counts) => counts.reduce((sum, count) => sum + count, 0);
  const axis = () => ns.templates.magnitudes;

  let stops = null;
  function colourOf(share) {
    stops ??= ns.templates.cividis.map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
    const place = Math.max(0, Math.min(1, 1 - Math.log10(share) / LEAST)) * (stops.length - 1);
    const left = Math.min(stops.length - 2, Math.floor(place));
    const parts = [0, 1, 2].map((at) => Math.round(stops[left][at] + (stops[left + 1][at] - stops[left][at]) * (place - left)));
    return `rgb(${parts.join()})`;
  }

  // Where things are: zero at the bottom, then the bins, Inf and NaN at the top, each apart.
  function geometry(canvas, columns) {
    const { inf } = axis();
    const width = Math.max(1, canvas.clientWidth - LEFT - RULER);
    const top = 2 * (SPECIAL + GAP), bottom = HEIGHT - SPECIAL - GAP;
    const bin = (bottom - top) / (inf - 1);
    return {
      left: LEFT, width, top, bottom, bin, column: Math.min(WIDEST, width / Math.max(1, columns)),
      edge: (number) => bottom - (number - 1) * bin, // lower edge of a bin
    };
  }

  function box(number, g) {
    const { zero, inf, nan } = axis();
    if (number === nan) return [0, SPECIAL];
    if (number === inf) return [SPECIAL + GAP, SPECIAL];
    if (number === zero) return [HEIGHT - SPECIAL, SPECIAL];
    return [g.edge(number + 1), g.bin];
  }

  function binAt(y, g) {
    const { zero, inf, nan } = axis();
    if (y < SPECIAL + GAP / 2) return nan;
    if (y < g.top - GAP / 2) return inf;
    if (y > g.bottom + GAP / 2) return zero;
    return Math.max(1, Math.min(inf - 1, 1 + Math.floor((g.bottom - y) / g.bin)));
  }

  function hatch(context, x, y, width, height, isLattice) {
    context.save();
    context.beginPath();
    context.rect(x, y, width, height);
    context.clip();
    context.strokeStyle = "#ffffff";
    context.lineWidth = 1;
    context.beginPath();
    for (let at = x - height; at < x + width; at += 5) {
      context.moveTo(at, y + height);
      context.lineTo(isLattice ? at : at + height, y);
    }
    context.stroke();
    context.restore();
  }

  function drawCells(context, { kind }, g, colours) {
    const { inf, nan } = axis();
    kind.counts.forEach((counts, column) => {
      const all = total(counts), x = g.left + column * g.column, width = Math.max(1, g.column);
      counts.forEach((count, number) => {
        if (!count) return;
        const [y, height] = box(number, g);
        const isBad = number === inf || number === nan;
        context.fillStyle = isBad ? colours[number === nan ? "nan" : "inf"] : colourOf(count / all);
        context.fillRect(x, y, width + 0.3, Math.max(1, height + (isBad ? 0 : 0.3)));
        if (isBad) hatch(context, x, y, width, height, number === inf);
      });
    });
  }

  // Dotted lines where a format begins and ends, and at the right its range: fainter where it keeps fewer bits.
  function drawFormats(context, g, colours) {
    const right = g.left + g.width;
    axis().formats.forEach((format, number) => {
      context.strokeStyle = context.fillStyle = colours.series[number];
      context.setLineDash([2, 3]);
      context.lineWidth = 1;
      for (const edge of [format.low, format.high]) {
        context.beginPath();
        context.moveTo(g.left, Math.round(g.edge(edge)) + 0.5);
        context.lineTo(right + 6 + number * 11, Math.round(g.edge(edge)) + 0.5);
        context.stroke();
      }
      context.setLineDash([]);
      const x = right + 6 + number * 11;
      context.fillRect(x, g.edge(format.high), 6, g.edge(format.normal) - g.edge(format.high));
      context.globalAlpha = 0.45;
      context.fillRect(x, g.edge(format.normal), 6, g.edge(format.low) - g.edge(format.normal));
      context.globalAlpha = 1;
    });
  }

  function drawAxis(context, g, colours) {
    context.fillStyle = colours.muted;
    context.font = `10px ${getComputedStyle(document.body).fontFamily}`;
    context.textAlign = "right";
    context.textBaseline = "middle";
    let last = Infinity;
    for (const [text, place] of axis().ticks) {
      if (last - g.edge(place) < 10 || g.bottom - g.edge(place) < 8 || g.edge(place) < g.top + 4) continue;
      last = g.edge(place);
      context.fillText(text, g.left - 4, last);
    }
    for (const [text, number] of [["NaN", axis().nan], ["Inf", axis().inf], ["zero", axis().zero]]) {
      const [y, height] = box(number, g);
      context.fillText(text, g.left - 4, y + height / 2);
    }
  }

  function draw(one) {
    const { canvas, kind } = one, width = canvas.clientWidth, scale = window.devicePixelRatio || 1;
    if (!width) return;
    canvas.width = width * scale;
    canvas.height = HEIGHT * scale;
    const context = canvas.getContext("2d"), colours = ns.theme().colours;
    context.scale(scale, scale);
    const g = geometry(canvas, kind.steps.length);
    context.fillStyle = colours.unmeasured;
    for (const [y, height] of [[0, SPECIAL], [SPECIAL + GAP, SPECIAL], [g.top, g.bottom - g.top], [HEIGHT - SPECIAL, SPECIAL]]) {
      context.fillRect(g.left, y, g.width, height);
    }
    drawCells(context, one, g, colours);
    drawFormats(context, g, colours);
    drawAxis(context, g, colours);
    if (one.column === null) return;
    context.strokeStyle = colours.text;
    context.strokeRect(g.left + one.column * g.column + 0.5, 0.5, Math.max(2, g.column) - 1, HEIGHT - 1);
    if (one.bin === null) return;
    const [y, height] = box(one.bin, g);
    context.strokeRect(g.left + one.column * g.column - 1, y - 1, Math.max(2, g.column) + 2, height + 2);
  }

  ns.histogramCanvas = { geometry, binAt, draw, total };
})(window.nanscope);
