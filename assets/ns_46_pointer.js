// Zoom and pan by pointer on every chart: a drag marks the steps to zoom to, with Shift it pans; the wheel pans with
// Shift and zooms with Ctrl; a double click shows everything again. Until the new picture is there, what is drawn is
// drawn from the arrays that are there; the heatmap, while it moves, is stretched (ns_49_heat_stretch.js).
// The plots of the view Ranks are charts here, too.
(function (ns) {
  "use strict";

  const LEAST_PX = 4; // what moves less is a click
  let drag = null; // {card, from, to, isPan, range}
  let isDragged = false;

  const CHART = "[data-chart], [data-steps]";
  const isPlot = (target) => target.closest(CHART) && !target.closest("button, select, input, a, .ns-gutter, [role=tree]");

  // The selection, over all tracks or over the one chart.
  function drawSelection() {
    const area = ns.byId("drag-selection");
    area.hidden = !drag || drag.isPan || Math.abs(drag.to - drag.from) < LEAST_PX;
    if (area.hidden) return;
    const holder = drag.card.closest(".ns-tracks") || drag.card;
    if (area.parentElement !== holder) holder.append(area);
    const left = holder.getBoundingClientRect().left;
    area.style.left = Math.min(drag.from, drag.to) - left + "px";
    area.style.width = Math.abs(drag.to - drag.from) + "px";
  }

  function shareAt(card, clientX) {
    const box = ns.plotBox(card);
    return Math.max(0, Math.min(1, (clientX - card.getBoundingClientRect().left - card.clientLeft - box.l) / box.w));
  }

  function begin(event) {
    isDragged = false;
    if (event.button !== 0 || !isPlot(event.target) || !ns.range) return;
    const card = event.target.closest(CHART);
    if (ns.stepAt(card, event.clientX) === null) return;
    drag = { card, from: event.clientX, to: event.clientX, isPan: event.shiftKey, range: ns.range, axis: ns.axis() };
    if (event.shiftKey) event.preventDefault();
  }

  function move(event) {
    if (!drag) return;
    drag.to = event.clientX;
    if (!drag.isPan) return ns.later(drawSelection);
    const { axis, card, range } = drag;
    const by = axis.at(shareAt(card, drag.from)) - axis.at(shareAt(card, drag.to));
    ns.showSteps(range[0] + by, range[1] + by);
  }

  function end(event) {
    if (!drag) return;
    const { card, from, isPan } = drag;
    const isDrag = Math.abs(event.clientX - from) >= LEAST_PX;
    const axis = ns.axis();
    const [low, high] = [from, event.clientX].map((x) => axis.at(shareAt(card, x))).sort((a, b) => a - b);
    drag = null;
    drawSelection();
    isDragged = isDrag;
    if (isDrag && !isPan) ns.zoom(low, high);
  }

  // What ends a drag is no click on what is below the pointer.
  function swallow(click) {
    if (isDragged) click.stopPropagation();
    isDragged = false;
  }

  function wheel(event) {
    if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return;
    if (!event.target.closest(CHART + ", .ns-axis-row")) return;
    event.preventDefault();
    const amount = event.deltaY || event.deltaX;
    if (event.shiftKey) ns.pan(Math.sign(amount) * 0.1);
    else ns.zoomBy(amount < 0 ? 1.25 : 0.8);
  }

  ns.startPointer = function () {
    const charts = ns.byId("step-charts");
    charts.addEventListener("pointerdown", begin);
    window.addEventListener("pointermove", move);
    window.addEventListener("pointerup", end);
    window.addEventListener("click", swallow, true);
    window.addEventListener("pointercancel", () => { drag = null; drawSelection(); });
    window.addEventListener("keydown", ({ key }) => { if (key === "Escape" && drag) { drag = null; drawSelection(); } });
    charts.addEventListener("dblclick", ({ target }) => { if (isPlot(target)) ns.reset(); });
    charts.addEventListener("wheel", wheel, { passive: false });
  };
})(window.nanscope);
