// Gradient flow, painted: depth from left to right against the value on a log scale, a bar of the values before for each
// layer, a dot for the step that is shown. Above MOST_BARS layers one band stands for the bars. NaN and Inf have a band
// above the scale, zero a line below it.
(function (ns) {
  "use strict";

  const MOST_BARS = 200;
  const LEFT = 60, RIGHT = 12, TOP = 24, FOOT = 36, ZERO = 20;
  const MOST_MISSES = 80; // labels in a row that find no place
  const FAR = Math.log10(2); // decades beyond its bar from which a dot is large
  const { FIRST, CODES, DECADES } = ns.codes;
  const FIRST_DECADE = Math.log10(ns.codeValue(FIRST));

  const isValue = (code) => code !== null && code >= FIRST;
  const decade = (code) => FIRST_DECADE + ((code - FIRST) / CODES) * DECADES;

  function limits(entries) {
    let low = Infinity, high = -Infinity;
    for (const entry of entries) {
      for (const code of [entry.now, entry.low, entry.high]) {
        if (!isValue(code)) continue;
        low = Math.min(low, code);
        high = Math.max(high, code);
      }
    }
    if (low > high) return null;
    const pad = Math.max((high - low) * 0.04, CODES / DECADES / 12);
    return [low - pad, high + pad];
  }

  function geometry(canvas, entries) {
    const width = canvas.clientWidth, height = canvas.clientHeight;
    const range = limits(entries);
    const plot = { left: LEFT, right: width - RIGHT, top: TOP, bottom: height - FOOT - ZERO };
    const slot = (plot.right - plot.left) / Math.max(1, entries.length);
    return {
      ...plot, width, height, slot, range, zero: height - FOOT - ZERO / 2,
      x: (index) => plot.left + (index + 0.5) * slot,
      y: (code) => plot.bottom - ((code - range[0]) / (range[1] - range[0])) * (plot.bottom - plot.top),
    };
  }

  // Powers of ten; where there are but one or two of them, 2 and 5 between.
  function ticks(g) {
    const [low, high] = g.range.map(decade);
    const every = Math.max(1, Math.ceil((high - low) / 8));
    const found = [];
    for (let power = Math.floor(low); power <= Math.ceil(high); power++) {
      if (power % every) continue;
      for (const factor of high - low < 1.6 ? [1, 2, 5] : [1]) found.push(power + Math.log10(factor));
    }
    return found.filter((each) => each >= low && each <= high);
  }

  const codeOf = (each) => FIRST + ((each - FIRST_DECADE) / DECADES) * CODES;

  function drawScale(context, g, colours) {
    context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    context.textBaseline = "middle";
    context.textAlign = "right";
    context.strokeStyle = colours.unmeasured;
    context.fillStyle = colours.muted;
    const line = (y) => { context.beginPath(); context.moveTo(g.left, y); context.lineTo(g.right, y); context.stroke(); };
    for (const each of g.range ? ticks(g) : []) {
      const y = Math.round(g.y(codeOf(each))) + 0.5;
      line(y);
      context.fillText(ns.quantity(10 ** each, ns.statistic().unit, 2), g.left - 8, y);
    }
    context.fillText("NaN, Inf", g.left - 8, TOP / 2);
    context.fillText("zero", g.left - 8, g.zero);
    line(g.top - 0.5);
    line(g.bottom + 0.5);
  }

  // Runs of neighbours with one outermost group.
  function groups(entries) {
    const found = [];
    entries.forEach((entry, index) => {
      const path = ns.groupsOf(entry.name)[0] ?? entry.name;
      const last = found[found.length - 1];
      if (last && last.path === path) last.end = index + 1;
      else found.push({ path, from: index, end: index + 1 });
    });
    return found;
  }

  function drawGroups(context, g, entries, colours) {
    context.textAlign = "center";
    const taken = [];
    let misses = 0;
    // The larger groups have the first choice of a place; where it is full, the rest of thousands is not tried.
    for (const group of groups(entries).sort((a, b) => b.end - b.from - (a.end - a.from))) {
      if (misses > MOST_MISSES) break;
      const left = g.left + group.from * g.slot, right = g.left + group.end * g.slot;
      if (group.from && right - left > 12) {
        context.strokeStyle = colours.unmeasured;
        context.strokeRect(Math.round(left) + 0.5, 0, 0, g.height - FOOT);
      }
      const text = ns.visible(group.path || "(root)").slice(0, 40), half = context.measureText(text).width / 2 + 4;
      const middle = Math.max(g.left - 20 + half, Math.min(g.right + RIGHT - half, (left + right) / 2));
      const isTaken = taken.some(([from, end]) => middle - half < end && middle + half > from);
      misses = isTaken ? misses + 1 : 0;
      if (isTaken) continue;
      const isHit = entries.slice(group.from, group.end).some((entry) => entry.side > 0 || ns.isBadCode(entry.now));
      context.fillStyle = isHit ? colours.severities[1] : colours.muted;
      context.fillText(text, middle, g.height - FOOT + 12);
      taken.push([middle - half, middle + half]);
    }
    context.fillStyle = colours.muted;
    context.fillText("depth, from input to output", (g.left + g.right) / 2, g.height - 8);
  }

  function drawBars(context, g, entries, colours) {
    const width = Math.max(2, Math.min(14, g.slot * 0.8));
    entries.forEach((entry, index) => {
      if (entry.low === null) return;
      const x = g.x(index) - width / 2, top = g.y(entry.high);
      context.globalAlpha = 0.28;
      context.fillStyle = colours.series[0];
      context.fillRect(x, top, width, Math.max(1, g.y(entry.low) - top));
      context.globalAlpha = 1;
      context.fillRect(x, Math.round(g.y(entry.median)) - 0.5, width, 1.5);
    });
  }

  // Where layers are more than pixels, a pixel has all of its layers' bars together.
  function drawBand(context, g, entries, colours) {
    const columns = [];
    entries.forEach((entry, index) => {
      if (entry.low === null) return;
      const x = Math.floor(g.x(index)), last = columns[columns.length - 1];
      if (last && last.x === x) {
        last.low = Math.min(last.low, entry.low);
        last.high = Math.max(last.high, entry.high);
        last.medians.push(entry.median);
      } else columns.push({ x, low: entry.low, high: entry.high, medians: [entry.median] });
    });
    if (!columns.length) return;
    context.fillStyle = context.strokeStyle = colours.series[0];
    context.globalAlpha = 0.28;
    context.beginPath();
    for (const each of columns) context.lineTo(each.x, g.y(each.high));
    for (const each of columns.slice().reverse()) context.lineTo(each.x, g.y(each.low));
    context.fill();
    context.globalAlpha = 1;
    context.beginPath();
    for (const { x, medians } of columns) context.lineTo(x, g.y(medians.sort((a, b) => a - b)[medians.length >> 1]));
    context.stroke();
  }

  function dot(context, x, y, radius) {
    if (radius < 2) return context.fillRect(x - radius, y - radius, 2 * radius, 2 * radius);
    context.beginPath();
    context.arc(x, y, radius, 0, 2 * Math.PI);
    context.fill();
  }

  // NaN is a square with a stroke through it, Inf one that is empty: told apart without colour.
  function drawBad(context, g, x, entry, colours) {
    const size = Math.max(3, Math.min(9, g.slot * 0.8)), y = TOP / 2 - size / 2;
    context.fillStyle = context.strokeStyle = entry.now & 1 ? colours.nan : colours.inf;
    if (!(entry.now & 1)) return context.strokeRect(x - size / 2, y, size, size);
    context.fillRect(x - size / 2, y, size, size);
    context.strokeStyle = "#ffffff";
    context.beginPath();
    context.moveTo(x - size / 2, y + size);
    context.lineTo(x + size / 2, y);
    context.stroke();
  }

  function drawDots(context, g, entries, colours) {
    const warning = colours.severities[1], isMany = entries.length > MOST_BARS;
    entries.forEach((entry, index) => {
      const x = g.x(index);
      if (ns.isBadCode(entry.now)) return drawBad(context, g, x, entry, colours);
      if (entry.now === 4) {
        context.fillStyle = colours.muted;
        const size = isMany ? 2 : 6;
        return context.fillRect(x - size / 2, g.zero - size / 2, size, size);
      }
      if (!isValue(entry.now)) return;
      const edge = entry.side > 0 ? entry.high : entry.low, y = g.y(entry.now);
      const isFar = entry.side !== 0 && Math.abs(ns.decadesBetween(entry.now, edge)) >= FAR;
      context.fillStyle = entry.side ? warning : isMany ? colours.muted : colours.text;
      if (isFar) {
        context.strokeStyle = warning;
        context.setLineDash([1, 2]);
        context.beginPath();
        context.moveTo(x, y);
        context.lineTo(x, g.y(edge));
        context.stroke();
        context.setLineDash([]);
      }
      dot(context, x, y, isFar ? 4.5 : isMany ? 1.3 : entry.side ? 3.2 : 2.8);
    });
  }

  // Paints it and returns where the layers are; `chosen` is the index of the one that is pointed at, or null.
  ns.paintFlow = function (canvas, flow, chosen) {
    const scale = window.devicePixelRatio || 1, { entries } = flow;
    const g = geometry(canvas, entries);
    canvas.width = Math.max(1, Math.round(g.width * scale));
    canvas.height = Math.max(1, Math.round(g.height * scale));
    const context = canvas.getContext("2d"), colours = ns.theme().colours;
    context.scale(scale, scale);
    drawScale(context, g, colours);
    drawGroups(context, g, entries, colours);
    if (g.range && entries.length > MOST_BARS) drawBand(context, g, entries, colours);
    else if (g.range) drawBars(context, g, entries, colours);
    drawDots(context, g, entries, colours);
    if (chosen !== null && entries[chosen]) {
      context.fillStyle = colours.text;
      context.globalAlpha = 0.4;
      context.fillRect(Math.round(g.x(chosen)), g.top, 1, g.height - FOOT - g.top);
      context.globalAlpha = 1;
    }
    return g;
  };

  // The slider: the largest value over the steps, NaN and Inf in a band above, and where the shown step is.
  ns.paintFlowSteps = function (canvas, flow) {
    const scale = window.devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
    canvas.width = Math.max(1, Math.round(width * scale));
    canvas.height = Math.max(1, Math.round(height * scale));
    const context = canvas.getContext("2d"), colours = ns.theme().colours, { course, column } = flow;
    context.scale(scale, scale);
    const values = course.filter((code) => code >= FIRST);
    const low = values.reduce((a, b) => Math.min(a, b), 65535), high = values.reduce((a, b) => Math.max(a, b), 0);
    const x = (at) => LEFT + ((at + 0.5) / course.length) * (width - LEFT - RIGHT);
    const half = Math.max(1, (width - LEFT - RIGHT) / course.length / 2);
    context.strokeStyle = colours.series[0];
    context.beginPath();
    let isOn = false;
    course.forEach((code, at) => {
      if (code >= FIRST) context[isOn ? "lineTo" : "moveTo"](x(at), height - 4 - ((code - low) / (high - low || 1)) * (height - 18));
      if (code) isOn = code >= FIRST;
      if (!ns.isBadCode(code)) return;
      context.fillStyle = code & 1 ? colours.nan : colours.inf;
      context.fillRect(x(at) - half, 0, 2 * half, 8);
    });
    context.stroke();
    context.fillStyle = colours.text;
    context.fillRect(Math.round(x(column)) - 1, 0, 2, height);
  };
  ns.flowColumnAt = (canvas, x, count) =>
    Math.max(0, Math.min(count - 1, Math.floor(((x - LEFT) / (canvas.clientWidth - LEFT - RIGHT)) * count)));
})(window.nanscope);
