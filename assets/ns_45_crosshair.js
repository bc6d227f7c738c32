// One crosshair through all tracks of the first screen: the same step in lines, heatmap and events, its values in the
// gutters. By pointer, or by arrow keys, which are read out. The line of a fault's origin is drawn in the same way.
(function (ns) {
  "use strict";

  const FAST = 10; // columns that an arrow with Shift moves
  let step = null; // under the crosshair
  let pointer = null; // {card, x} where it rests over a track

  ns.crosshair = () => step;

  // Where a step lies in the tracks, in pixels; null outside of what is shown.
  function placeOf(at) {
    const box = ns.heatmapBox();
    if (!box || !ns.range) return null;
    const share = ns.axis().of(at);
    return share < 0 || share > 1 ? null : box.l + share * box.w;
  }

  // Where the plot lies in a chart's card; what is marked `data-steps` is a plot alone (the view Ranks).
  ns.plotBox = function (card) {
    if ("steps" in card.dataset) return card.clientWidth ? { l: 0, t: 0, w: card.clientWidth, h: card.clientHeight } : null;
    return card.dataset.chart === "heatmap" ? ns.heatmapBox() : ns.boxOf(card.dataset.chart);
  };

  // The step under a place of the window, in one chart's card; null beside its plot.
  ns.stepAt = function (card, clientX) {
    const box = ns.plotBox(card);
    if (!box || !ns.range) return null;
    const share = (clientX - card.getBoundingClientRect().left - card.clientLeft - box.l) / box.w;
    if (share < 0 || share > 1) return null;
    return Math.max(0, Math.min(Math.round(ns.axis().at(share)), ns.range[1] - 1));
  };

  function draw() {
    const at = step === null ? null : placeOf(step);
    const line = ns.byId("crosshair"), label = ns.byId("crosshair-step");
    line.hidden = label.hidden = at === null;
    if (at !== null) {
      line.style.left = at + "px";
      label.style.left = at + "px";
      ns.setText(label.firstChild, ns.count(step));
      const time = ns.clockAt(step);
      ns.setText(label.lastChild, time ? ` \u00b7 ${time}` : "");
    }
  }

  ns.setCrosshair = function (value) {
    if (value === step) return;
    step = value;
    ns.later(draw);
    ns.emit("crosshair", step);
  };

  const firstOf = (id) => ns.templates.charts.find((chart) => chart.id === id).names[0];

  // Arrows move by a column of the picture, and what stands there is read out.
  function move(event) {
    const direction = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!direction || !ns.range || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const column = ns.heatmap.fields ? ns.heatmap.fields.stepsPerColumn : 1;
    const from = step ?? ns.range[1] - 1 + (direction < 0 ? column : 0);
    const to = from + direction * column * (event.shiftKey ? FAST : 1);
    ns.setCrosshair(Math.max(ns.range[0], Math.min(ns.range[1] - 1, to)));
    const names = { loss: "loss", grad_norm: "gradient norm" };
    const values = ns.templates.tracks.map((id) => `${names[id]} ${ns.lineValue(id, firstOf(id), step)}`);
    ns.setText(ns.byId("announcer"), `step ${ns.count(step)}: ${values.join(", ")}`);
  }

  let origin = null; // step at which the fault began

  function drawOrigin() {
    const line = ns.byId("origin-line");
    const at = origin === null ? null : placeOf(origin - 0.5);
    line.hidden = at === null;
    if (at !== null) line.style.left = at - 1 + "px";
  }

  // The axis of a live run moves on below a pointer that rests; a step that arrows have chosen stays.
  function stay() {
    if (pointer) ns.setCrosshair(ns.stepAt(pointer.card, pointer.x));
    else if (step !== null && (!ns.range || step < ns.range[0] || step >= ns.range[1])) ns.setCrosshair(null);
    else draw();
    drawOrigin();
  }

  ns.startCrosshair = function () {
    const tracks = ns.byId("tracks");
    const charts = ns.byId("step-charts");
    charts.addEventListener("mousemove", ({ target, clientX }) => {
      const card = target.closest("[data-chart]");
      if (!card) return;
      pointer = { card, x: clientX };
      ns.setCrosshair(ns.stepAt(card, clientX));
    });
    charts.addEventListener("mouseleave", () => { pointer = null; ns.setCrosshair(null); });
    tracks.addEventListener("keydown", (event) => event.target === tracks && move(event));
    tracks.addEventListener("blur", () => ns.setCrosshair(null));
    ns.on("message", ({ run, verdict }) => {
      if (run === null || run !== ns.view.run) return;
      const next = verdict.severity === "critical" ? verdict.step : null;
      if (next !== origin) ns.later(drawOrigin);
      origin = next;
    });
    ns.on("heatmap", () => { drawOrigin(); if (step !== null) draw(); });
    for (const name of ["range", "axis"]) ns.on(name, () => ns.later(stay));
  };
})(window.nanscope);
