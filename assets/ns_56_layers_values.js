// Values at the right of the lines of the view Layers, and a sparkline of each line's last columns.
(function (ns) {
  "use strict";

  const SPARK_COLUMNS = 200;

  /** @param {PlotBox} box @param {number} height */
  function drawSparks(box, height) {
    const canvas = ns.byId("layers-sparks");
    canvas.hidden = !ns.layersWidths().hasSparks;
    if (canvas.hidden) return;
    const scale = window.devicePixelRatio || 1, width = 96;
    Object.assign(canvas.style, {
      left: box.l + box.w + 84 + "px", top: box.t + "px", width: width + "px", height: box.h + "px",
    });
    canvas.width = width * scale;
    canvas.height = Math.max(1, box.h * scale);
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    context.strokeStyle = ns.theme().colours.series[0];
    ns.visibleLines().forEach((line, at) => {
      const codes = ns.lineCodes(line).slice(-SPARK_COLUMNS);
      const [low, high] = ns.ownRange(codes);
      context.beginPath();
      let isOn = false;
      codes.forEach((code, column) => {
        if (code === 0) return; // not measured: the line goes on
        if (ns.isBadCode(code)) { isOn = false; return; }
        const share = Math.max(0, Math.min(1, (code - low) / (high - low)));
        const x = (column / Math.max(1, codes.length - 1)) * width, y = at * height + 2 + (1 - share) * (height - 4);
        context[isOn ? "lineTo" : "moveTo"](x, y);
        isOn = true;
      });
      context.stroke();
    });
  }

  // Texts of the lines on screen, how high a line is, and of which column they are.
  ns.drawLayersValues = function (values, height, column) {
    const box = ns.heatmapBox();
    const { hasValues, hasSparks } = ns.layersWidths();
    const holder = ns.byId("layers-values");
    holder.hidden = !hasValues;
    Object.assign(holder.style, { left: box.l + box.w + 12 + "px", top: box.t + "px" });
    holder.replaceChildren(...values.map((text, row) => {
      const value = ns.make("div", /^(NaN|Inf)/.test(text) ? "ns-bad" : "", text);
      Object.assign(value.style, { top: row * height + "px", lineHeight: height + "px" });
      return value;
    }));
    drawSparks(box, height);
    const head = ns.byId("layers-values-head");
    head.hidden = !hasValues;
    head.style.left = box.l + box.w + 12 + "px";
    const step = ns.array("heatmap/steps")[column];
    const parts = step === undefined ? [] : [`at ${ns.count(step)}`, ...(hasSparks ? [`last ${SPARK_COLUMNS} columns`] : [])];
    head.replaceChildren(...parts.map((text) => ns.make("span", "", text)));
  };
})(window.nanscope);
