// One crosshair through all tracks of the first screen: the same step in lines, heatmap and events, its values in the
// gutters. By pointer, or by arrow keys, which are read out. The line of a fault's origin is drawn in the same way.
(function (ns) {
  "use strict";

  const FAST = 10; // columns that an arrow with Shift moves
  let step = null; // under the crosshair
  const texts = new Map(); // id of a track -> what its gutter says without a crosshair

  ns.crosshair = () => step;

  // Where a step lies in the tracks, in pixels; null outside of what is shown.
  function placeOf(at) {
    const box = ns.heatmapBox();
    if (!box || !ns.range) return null;
    const [first, last] = ns.axisRange();
    const share = (at - first) / (last - first);
    return share < 0 || share > 1 ? null : box.l + share * box.w;
  }

  function stepAt(clientX) {
    const box = ns.heatmapBox();
    if (!box || !ns.range) return null;
    const share = (clientX - ns.byId("tracks").getBoundingClientRect().left - box.l) / box.w;
    if (share < 0 || share > 1) return null;
    const [first, last] = ns.axisRange();
    return Math.max(0, Math.min(Math.round(first + share * (last - first)), ns.range[1] - 1));
  }

  // Index of the point of a series that is nearest to a step; -1 where none is near.
  function nearest(x, at) {
    let low = 0, high = x.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (x[middle] < at) low = middle + 1;
      else high = middle;
    }
    const best = low > 0 && (low === x.length || at - x[low - 1] <= x[low] - at) ? low - 1 : low;
    const apart = x.length > 1 ? (x[x.length - 1] - x[0]) / (x.length - 1) : 1;
    return best < x.length && Math.abs(x[best] - at) <= Math.max(0.5, 1.5 * apart) ? best : -1;
  }

  // What a track's first line says at a step.
  function valueAt(id, at) {
    const chart = ns.templates.charts.find((each) => each.id === id);
    const key = `${id}/${chart.names[0]}`;
    for (const [part, name] of [["nan", "NaN"], ["inf", "Inf"]]) {
      const marks = ns.array(`${key}/${part}/x`);
      const found = nearest(marks, at);
      if (found >= 0 && Math.abs(marks[found] - at) <= 0.5) return name;
    }
    const found = nearest(ns.array(key + "/line/x"), at);
    const value = found < 0 ? NaN : ns.array(key + "/line/y")[found];
    return Number.isFinite(value) ? ns.significant(value) : "\u2013";
  }

  // Fills a gutter: the value under the crosshair with the newest beside it, else the newest alone.
  ns.drawGutter = function (id, text) {
    if (text) texts.set(id, text);
    const now = texts.get(id);
    const element = ns.byId("tile-" + id);
    if (!now || !element) return;
    const isThere = step !== null;
    const value = isThere ? valueAt(id, step) : now.value;
    ns.setText(element.querySelector(".ns-tile-value"), value);
    ns.setText(element.querySelector(".ns-tile-detail"), isThere ? `now ${now.value}` : now.detail);
    element.classList.toggle("ns-bad", isThere ? ["NaN", "Inf"].includes(value) : now.is_bad);
  };

  function draw() {
    const at = step === null ? null : placeOf(step);
    const line = ns.byId("crosshair"), label = ns.byId("crosshair-step");
    line.hidden = label.hidden = at === null;
    if (at !== null) {
      line.style.left = at + "px";
      label.style.left = at + "px";
      ns.setText(label, ns.count(step));
    }
    for (const id of ns.templates.tracks) ns.drawGutter(id);
  }

  ns.setCrosshair = function (value) {
    if (value === step) return;
    step = value;
    ns.later(draw);
    ns.emit("crosshair", step);
  };

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
    const values = ns.templates.tracks.map((id) => `${names[id]} ${valueAt(id, step)}`);
    ns.setText(ns.byId("announcer"), `step ${ns.count(step)}: ${values.join(", ")}`);
  }

  let origin = null; // step at which the fault began

  function drawOrigin() {
    const line = ns.byId("origin-line");
    const at = origin === null ? null : placeOf(origin - 0.5);
    line.hidden = at === null;
    if (at !== null) line.style.left = at - 1 + "px";
  }

  ns.startCrosshair = function () {
    const tracks = ns.byId("tracks");
    tracks.addEventListener("mousemove", (event) => ns.setCrosshair(stepAt(event.clientX)));
    tracks.addEventListener("mouseleave", () => ns.setCrosshair(null));
    tracks.addEventListener("keydown", (event) => event.target === tracks && move(event));
    tracks.addEventListener("blur", () => ns.setCrosshair(null));
    ns.on("message", ({ run, verdict }) => {
      if (run === null || run !== ns.view.run) return;
      origin = verdict.severity === "critical" ? verdict.step : null;
    });
    ns.on("heatmap", () => { drawOrigin(); if (step !== null) draw(); });
    ns.on("range", () => ns.setCrosshair(null));
  };
})(window.nanscope);
