// Paints one chart on its canvas: grid and scale, areas, lines, the band for NaN and Inf above them, gaps and breaks.
// Everything that it needs is in the description that it gets.
(function (ns) {
  "use strict";

  const BAND_PX = 8; // above the scale, as in the heatmap a place of its own for what is no number
  const LEAST_MARK_PX = 3;
  const LABEL_PX = 26; // of one label of the y-scale, with its room
  ns.LINE_PART = 8; // points of a line that are stroked at once: without a GPU 600 in one take four times as long
  const AREA_ALPHA = 0.22, STACK_ALPHA = 0.62;
  ns.FONT = "11px system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'DejaVu Sans', sans-serif";

  // Sizes a canvas for the screen's pixels and returns its context in CSS pixels, empty.
  ns.freshContext = function (canvas, width, height) {
    const scale = window.devicePixelRatio || 1;
    const [w, h] = [Math.max(1, Math.round(width * scale)), Math.max(1, Math.round(height * scale))];
    if (canvas.width !== w) canvas.width = w;
    if (canvas.height !== h) canvas.height = h;
    const context = canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    return context;
  };

  function paintGrid(context, { box, scale, yTicks, xTicks, hasFoot, colours }) {
    context.font = ns.FONT;
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const tick of yTicks) {
      const y = Math.round(box.t + box.h * (1 - scale.of(tick))) + 0.5;
      context.strokeStyle = colours.grid;
      context.beginPath();
      context.moveTo(box.l, y);
      context.lineTo(box.l + box.w, y);
      context.stroke();
      context.fillStyle = colours.muted;
      context.fillText(ns.tickText(tick, yTicks), box.l - 8, Math.max(box.t - 2, Math.min(box.t + box.h - 6, y)));
    }
    paintFoot(context, { box, xTicks, hasFoot, colours });
  }

  // Lines of the x-axis, and its texts below where the chart has a foot.
  function paintFoot(context, { box, xTicks, hasFoot, colours, hasLines = true }) {
    context.textAlign = "center";
    context.textBaseline = "top";
    for (const { share, text } of xTicks) {
      const x = Math.round(box.l + share * box.w) + 0.5;
      if (x < box.l || x > box.l + box.w + 1) continue;
      if (hasLines) {
        context.strokeStyle = colours.grid;
        context.beginPath();
        context.moveTo(x, box.t);
        context.lineTo(x, box.t + box.h);
        context.stroke();
      }
      if (!hasFoot) continue;
      context.fillStyle = colours.muted;
      const half = context.measureText(text).width / 2;
      context.fillText(text, Math.max(box.l + half - 8, Math.min(box.l + box.w + 8 - half, x)), box.t + box.h + 6);
    }
  }
  ns.paintFoot = paintFoot;

  // Calls draw(x, y, isNew) for the points of a line; a value that is no number breaks it.
  function follow({ x, y }, chart, draw) {
    const { box, axis, scale } = chart;
    let isOn = false;
    for (let at = 0; at < x.length; at++) {
      const value = y[at];
      if (!Number.isFinite(value) || (scale.isLog && value <= 0)) { isOn = false; continue; }
      // Far outside of the box there is nothing to see, and canvases do not like such numbers.
      const share = Math.max(-9, Math.min(10, scale.of(value)));
      draw(box.l + axis.of(x[at]) * box.w, box.t + box.h * (1 - share), !isOn);
      isOn = true;
    }
  }

  function paintLine(context, line, chart) {
    context.globalAlpha = line.alpha ?? 1;
    context.strokeStyle = context.fillStyle = line.colour;
    context.lineWidth = line.width ?? 1.6;
    context.lineJoin = context.lineCap = "round";
    context.beginPath();
    let count = 0;
    follow(line, chart, (x, y, isNew) => {
      context[isNew ? "moveTo" : "lineTo"](x, y);
      if ((count += 1) % ns.LINE_PART || context.globalAlpha < 1) return; // what shines through shows where parts meet
      context.stroke();
      context.beginPath();
      context.moveTo(x, y);
    });
    context.stroke();
    context.lineCap = "butt";
    if (line.hasDots) {
      follow(line, chart, (x, y) => {
        context.beginPath();
        context.arc(x, y, 2.5, 0, 2 * Math.PI);
        context.fill();
      });
    }
    context.globalAlpha = 1;
  }

  // Between two lines over the same steps.
  function paintArea(context, { x, low, high, colour, alpha = AREA_ALPHA }, chart) {
    const { box, axis, scale } = chart;
    const yOf = (value) => box.t + box.h * (1 - Math.max(-9, Math.min(10, scale.of(value))));
    const isDrawn = (at) => Number.isFinite(low[at]) && Number.isFinite(high[at]) && !(scale.isLog && low[at] <= 0);
    context.globalAlpha = alpha;
    context.fillStyle = colour;
    for (let start = 0; start < x.length; start++) {
      if (!isDrawn(start)) continue;
      let end = start;
      while (end + 1 < x.length && isDrawn(end + 1)) end += 1;
      context.beginPath();
      for (let at = start; at <= end; at++) context.lineTo(box.l + axis.of(x[at]) * box.w, yOf(high[at]));
      for (let at = end; at >= start; at--) context.lineTo(box.l + axis.of(x[at]) * box.w, yOf(low[at]));
      context.fill();
      start = end;
    }
    context.globalAlpha = 1;
  }

  // What is no number, over the columns in which it is.
  function paintBand(context, bands, { box, axis, colours }) {
    for (const { kind, x, half } of bands) {
      if (!x.length) continue;
      context.fillStyle = ns.hatch(context, kind, colours[kind]);
      for (const step of x) {
        const left = box.l + axis.of(step - half) * box.w;
        const width = Math.max(LEAST_MARK_PX, box.l + axis.of(step + half) * box.w - left);
        context.fillRect(left, box.t - BAND_PX - 1, width, BAND_PX);
      }
    }
  }

  // Steps that a series marks: a bar over each stretch of them, or a triangle for each.
  function paintMarks(context, marks, { box, axis }) {
    const y = box.t - 2;
    for (const { x, colour, isBar } of marks) {
      context.fillStyle = colour;
      if (isBar) {
        for (let at = 0; at + 1 < x.length; at += 3) {
          const left = box.l + axis.of(x[at]) * box.w;
          context.fillRect(left, y - 3, Math.max(1, box.l + axis.of(x[at + 1]) * box.w - left), 3);
        }
        continue;
      }
      for (const step of x) {
        const at = box.l + axis.of(step) * box.w;
        context.beginPath();
        context.moveTo(at - 4, y - 8);
        context.lineTo(at + 4, y - 8);
        context.lineTo(at, y - 1);
        context.fill();
      }
    }
  }

  function paintGaps(context, gaps, { box, axis, colours }) {
    context.fillStyle = colours.gap;
    for (const { first, last } of gaps) {
      const left = first === null ? box.l : box.l + axis.of(first - 0.5) * box.w;
      const right = last === null ? box.l + box.w : box.l + axis.of(last + 0.5) * box.w;
      context.fillRect(left, box.t, Math.max(1, right - left), box.h);
    }
  }

  // Where recording stopped or a start's steps began again: a dashed line from top to bottom, with its word.
  const BREAK_WORDS = { restart: "restarted", off: "off" };
  function paintBreaks(context, breaks, { box, axis, colours }) {
    context.strokeStyle = context.fillStyle = colours.muted;
    context.lineWidth = 1;
    context.font = ns.FONT;
    context.textAlign = "left";
    context.textBaseline = "top";
    context.setLineDash([4, 3]);
    for (const { step, kind } of breaks) {
      // A restart is before its step, level off after it.
      const x = Math.round(box.l + axis.of(step + (kind === "off" ? 0.5 : -0.5)) * box.w) + 0.5;
      context.beginPath();
      context.moveTo(x, box.t);
      context.lineTo(x, box.t + box.h);
      context.stroke();
      context.fillText(BREAK_WORDS[kind] ?? "", x + 4, box.t + 2);
    }
    context.setLineDash([]);
  }

  // That of the tracks is an element over all of them (ns_45_crosshair.js); a chart elsewhere has its own.
  /** @param {CanvasRenderingContext2D} context @param {Painting} chart */
  function paintCrosshair(context, { box, axis, colours, crosshair }) {
    if (crosshair === null || crosshair === undefined) return;
    context.fillStyle = colours.muted;
    context.fillRect(Math.round(box.l + axis.of(crosshair) * box.w), box.t, 1, box.h);
  }

  // Goes on with a line of a chart that is painted.
  /** @param {CanvasRenderingContext2D} context @param {ChartLine} line @param {Painting} chart */
  ns.paintOn = function (context, line, chart) {
    const { box } = chart;
    context.save();
    context.beginPath();
    context.rect(box.l, box.t, box.w, box.h);
    context.clip();
    paintLine(context, line, chart);
    context.restore();
  };

  // {box, axis, scale, colours, yTicks, xTicks, hasFoot, lines, areas, bands, marks, gaps, breaks, crosshair}
  ns.paintChart = function (context, chart) {
    const { box } = chart;
    paintGrid(context, chart);
    context.save();
    context.beginPath();
    context.rect(box.l, box.t - BAND_PX - 2, box.w, box.h + BAND_PX + 2);
    context.clip();
    paintGaps(context, chart.gaps, chart);
    paintBand(context, chart.bands, chart);
    paintMarks(context, chart.marks, chart);
    context.beginPath();
    context.rect(box.l, box.t, box.w, box.h);
    context.clip();
    for (const area of chart.areas) paintArea(context, area, chart);
    for (const line of chart.lines) paintLine(context, line, chart);
    paintBreaks(context, chart.breaks, chart);
    paintCrosshair(context, chart);
    context.restore();
  };

  ns.yTicks = function (scale, height) {
    const most = Math.max(1, Math.min(5, Math.floor(height / LABEL_PX)));
    return scale.isLog ? ns.logTicks(scale.low, scale.high, most) : ns.linearTicks(scale.low, scale.high, most);
  };

  // Lines as areas, one on top of the other from the bottom up, over the steps of the longest. A line that begins later, or
  // has a hole, adds nothing there.
  ns.stacked = function (lines) {
    const { x } = lines.reduce((longest, line) => (line.x.length > longest.x.length ? line : longest), /** @type {{ x: Values }} */ ({ x: [] }));
    let low = new Float64Array(x.length);
    return lines.map((line) => {
      const own = new Map(Array.from(line.x, (step, at) => [step, line.y[at]]));
      const high = Float64Array.from(x, (step, at) => low[at] + (Number.isFinite(own.get(step)) ? own.get(step) : 0));
      const area = { x, low, high, colour: line.colour, alpha: STACK_ALPHA };
      low = high;
      return area;
    });
  };
})(window.nanscope);
