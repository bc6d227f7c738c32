// Tooltip of the heatmap: layer, steps, value, and that a value is the maximum of several steps. A click opens
// the row's histograms, where there are any.
(function (ns) {
  "use strict";

  // The cell under a pointer position, or null.
  function cellAt(clientX, clientY) {
    const box = ns.heatmapBox();
    if (!box || !ns.heatmap.fields || !ns.range) return null;
    const card = ns.plot("heatmap").getBoundingClientRect();
    const x = (clientX - card.left - box.l) / box.w, y = (clientY - card.top - box.t) / box.h;
    if (x < 0 || x >= 1 || y < 0 || y >= 1) return null;
    const step = Math.round(ns.axis().at(x));
    const at = Math.floor(y * ns.heatmap.shown.length);
    const row = ns.heatmap.shown[at];
    const line = ns.isLayers() ? ns.lineAt(at) : null;
    if (row === undefined) return null;
    const starts = ns.array("heatmap/steps");
    let low = 0, high = starts.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (starts[middle] <= step) low = middle + 1;
      else high = middle;
    }
    const column = low - 1;
    const size = ns.heatmap.fields.stepsPerColumn;
    const isInside = column >= 0 && step < starts[column] + size;
    const codeOf = () => (line ? ns.lineCodes(line)[column] : ns.array("heatmap/codes")[column * ns.heatmap.fields.rowCount + row]);
    const code = isInside ? codeOf() : 0;
    return { name: line ? line.path : ns.heatmap.rows[row], step: isInside ? starts[column] : step, size, code };
  }

  ns.describeCell = describe;
  function describe(code, size) {
    if (code === 0) return "not measured";
    if (code < 4) return ["", "NaN", "Inf", "NaN and Inf"][code];
    const value = ns.quantity(ns.codeValue(code), ns.statistic().unit);
    if (size === 1) return value;
    const pooled = ns.heatmap.fields.every > 1 ? "largest of those measured in" : "max of";
    return `${value} (${pooled} ${ns.count(size)} steps)`;
  }

  let over = null; // where the pointer rests

  function show(event) {
    over = event;
    const tooltip = ns.byId("tooltip");
    const cell = ns.isMoving() ? null : cellAt(event.clientX, event.clientY);
    tooltip.hidden = cell === null;
    if (!cell) return;
    const name = cell.name || "(root)";
    const last = cell.step + cell.size - 1;
    const steps = cell.size > 1 ? `steps ${ns.count(cell.step)}\u2013${ns.count(last)}` : `step ${ns.count(cell.step)}`;
    tooltip.replaceChildren(
      ns.make("b", "", name), ns.make("div", "", steps), ns.make("div", "", describe(cell.code, cell.size)),
    );
    if (ns.hasHistograms()) tooltip.append(ns.make("div", "ns-small", "click: histograms of its elements"));
    const left = Math.min(event.clientX + 14, window.innerWidth - tooltip.offsetWidth - 8);
    const top = Math.min(event.clientY + 14, window.innerHeight - tooltip.offsetHeight - 8);
    Object.assign(tooltip.style, { left: left + "px", top: top + "px" });
  }

  const DOUBLE_CLICK_MS = 300;
  let opening = 0;

  // A click opens the row, unless it is the first of the two that show the whole range again. What ends a drag is
  // no click (ns_46_pointer.js).
  function open(event) {
    window.clearTimeout(opening);
    const cell = ns.hasHistograms() ? cellAt(event.clientX, event.clientY) : null;
    if (!cell || event.detail > 1) return;
    opening = window.setTimeout(() => ns.openRow(cell.name), DOUBLE_CLICK_MS);
  }

  ns.startHeatmapHover = function () {
    const plot = ns.plot("heatmap");
    plot.addEventListener("click", open);
    plot.addEventListener("dblclick", () => window.clearTimeout(opening));
    plot.addEventListener("mousemove", show);
    plot.addEventListener("mouseleave", () => { over = null; ns.byId("tooltip").hidden = true; });
    ns.on("heatmap", () => { if (over) show(over); }); // the picture of a live run moves below it
  };
})(window.nanscope);
