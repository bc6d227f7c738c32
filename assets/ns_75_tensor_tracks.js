// Small tracks in the panel of a tensor: each of its statistics over the steps in view, and the last values as a table.
// The pointer or the arrow keys choose a step, whose values stand beside all tracks. Data: dashboard/page/views/
// tensor_statistics.py.
(function (ns) {
  "use strict";

  const HEIGHT = 36, BAND = 6, PAD = 3;
  const FAST = 10; // steps that an arrow with Shift moves
  let tracks = [];
  let step = null; // that is pointed at; null is the newest
  let places = []; // steps at which anything was measured, ascending

  const holder = () => ns.byId("row-tracks-canvases");
  const bad = (flags) => (flags & 2 ? (flags & 4 ? "NaN, Inf" : "NaN") : flags & 4 ? "Inf" : "");

  function textOf(value, flags, unit) {
    return bad(flags) || (value === null ? "\u2013" : ns.quantity(value, unit));
  }

  // The last measured value at or before a step; -1 without one.
  function at(track, wanted) {
    let low = 0, high = track.steps.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (track.steps[middle] <= wanted) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  const newestStep = () => places[places.length - 1] ?? 0;
  const shownStep = () => step ?? newestStep();

  function bounds() {
    const ends = tracks.map((track) => track.steps[track.steps.length - 1] + track.size);
    return [places[0] ?? 0, Math.max(1, ...ends)];
  }

  // From value to share of the height. Log where the values differ as much as a chart's would have to (charts.py).
  function scaleOf(track) {
    const values = track.values.filter((value) => value !== null);
    const positive = values.filter((value) => value > 0);
    const low = Math.min(...values), high = Math.max(...values), least = Math.min(...positive);
    if (positive.length && low >= 0 && high > ns.templates.logRatio * least) {
      const [from, to] = [Math.log10(least), Math.log10(high)];
      return (value) => (value <= 0 ? 0 : (Math.log10(value) - from) / (to - from || 1));
    }
    return (value) => (high === low ? 0.5 : (value - low) / (high - low));
  }

  function draw(canvas, track) {
    const width = canvas.clientWidth, scale = window.devicePixelRatio || 1;
    if (!width) return;
    canvas.width = width * scale;
    canvas.height = HEIGHT * scale;
    const context = canvas.getContext("2d"), colours = ns.theme().colours;
    context.scale(scale, scale);
    const [first, end] = bounds();
    const x = (place) => ((place - first) / Math.max(1, end - first)) * (width - 2) + 1;
    const share = scaleOf(track);
    const y = (value) => HEIGHT - PAD - share(value) * (HEIGHT - BAND - 2 * PAD);
    context.strokeStyle = context.fillStyle = colours.series[0];
    context.lineWidth = 1.25;
    context.beginPath();
    let isOn = false;
    track.steps.forEach((place, index) => {
      const value = track.values[index];
      if (value === null) { isOn = false; return; }
      context[isOn ? "lineTo" : "moveTo"](x(place), y(value));
      isOn = true;
    });
    context.stroke();
    if (track.steps.length < 40) {
      track.steps.forEach((place, index) => {
        if (track.values[index] !== null) context.fillRect(x(place) - 1, y(track.values[index]) - 1, 2.5, 2.5);
      });
    }
    // NaN and Inf in a band above the scale: full for NaN, half for Inf.
    track.steps.forEach((place, index) => {
      const flags = track.flags[index];
      if (!bad(flags)) return;
      context.fillStyle = flags & 2 ? colours.nan : colours.inf;
      context.fillRect(x(place) - 1, 0, Math.max(2, x(place + track.size) - x(place)), flags & 2 ? BAND : BAND / 2);
    });
    if (step === null) return;
    context.fillStyle = colours.text;
    context.globalAlpha = 0.55;
    context.fillRect(x(step), 0, 1, HEIGHT);
  }

  function drawValues() {
    const wanted = shownStep();
    [...holder().children].forEach((row, index) => {
      const track = tracks[index];
      if (!track) return; // the axis
      const found = at(track, wanted);
      const text = found < 0 ? "\u2013" : textOf(track.values[found], track.flags[found], track.unit);
      const [, value, when] = row.firstElementChild.children;
      ns.setText(value, text);
      value.classList.toggle("ns-bad-value", /^(NaN|Inf)/.test(text));
      ns.setText(when, found < 0 ? "" : stepsText(track.steps[found], track.size));
    });
  }

  function stepsText(first, size) {
    return size > 1 ? `largest of ${ns.count(first)}\u2013${ns.count(first + size - 1)}` : `step ${ns.count(first)}`;
  }

  function drawAll() {
    if (ns.view.row === null || !tracks.length) return;
    for (const [index, row] of [...holder().children].entries()) {
      if (tracks[index]) draw(row.lastElementChild, tracks[index]);
    }
    drawValues();
  }

  function rowOf(track) {
    const row = ns.make("div", "tensor-track"), facts = ns.make("div", "tensor-facts");
    facts.append(ns.make("span", "tensor-label", track.label), ns.make("b"), ns.make("span", "ns-small"));
    const canvas = ns.make("canvas");
    ns.setAttribute(canvas, "aria-hidden", "true");
    row.append(facts, canvas);
    return row;
  }

  // The header of a column may be long: it breaks at spaces.
  function drawNewest({ columns, size, rows }) {
    ns.byId("row-newest").hidden = !rows.length;
    const cell = (tag, text, scope) => {
      const made = ns.make(tag, "", text);
      if (scope) made.scope = scope;
      return made;
    };
    const head = ns.make("tr");
    head.append(cell("th", size > 1 ? `Steps, ${size} each` : "Step", "col"), ...columns.map(([label]) => cell("th", label, "col")));
    ns.byId("row-newest-head").replaceChildren(head);
    ns.byId("row-newest-rows").replaceChildren(...rows.map(([place, cells]) => {
      const line = ns.make("tr");
      line.append(cell("th", ns.count(place), "row"));
      cells.forEach((value, index) => {
        const text = value === null ? "\u2013" : textOf(value[0], value[1], columns[index][1]);
        const made = cell("td", text);
        if (/^(NaN|Inf)/.test(text)) made.className = "magnitude-bad";
        line.append(made);
      });
      return line;
    }));
  }

  ns.showTensorTracks = function (shown) {
    const names = (list) => list.map((track) => track.name + track.label).join();
    const isSame = names(tracks) === names(shown.tracks);
    tracks = shown.tracks;
    places = [...new Set(tracks.flatMap((track) => track.steps))].sort((a, b) => a - b);
    if (step !== null && (step < places[0] || step > newestStep() || !places.length)) step = null;
    ns.byId("row-over-steps").hidden = !tracks.length;
    if (!isSame) holder().replaceChildren(...tracks.map(rowOf), ...(tracks.length ? [ns.make("div", "tensor-axis ns-small")] : []));
    if (tracks.length) {
      const [first, end] = bounds();
      ns.setText(holder().lastElementChild, `steps ${ns.count(first)} to ${ns.count(end - 1)}`);
    }
    drawNewest(shown.newest);
    ns.later(drawAll);
  };

  function move(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (by === undefined || !places.length || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const from = Math.max(0, at({ steps: places }, shownStep()));
    step = places[Math.max(0, Math.min(places.length - 1, from + by * (event.shiftKey ? FAST : 1)))];
    const values = tracks.map((track) => {
      const found = at(track, step);
      return found < 0 ? "" : `${track.label} ${textOf(track.values[found], track.flags[found], track.unit)}`;
    });
    ns.setText(ns.byId("announcer"), [`step ${ns.count(step)}`, ...values.filter(Boolean)].join(", "));
    ns.later(drawAll);
  }

  ns.startTensorTracks = function () {
    const element = holder();
    element.addEventListener("keydown", move);
    element.addEventListener("pointermove", (event) => {
      const canvas = event.target.closest("canvas");
      if (!canvas || !places.length) return;
      const box = canvas.getBoundingClientRect(), [first, end] = bounds();
      const found = at({ steps: places }, first + ((event.clientX - box.left) / box.width) * (end - first));
      step = places[Math.max(0, found)];
      ns.later(drawAll);
    });
    for (const kind of ["pointerleave", "blur"]) element.addEventListener(kind, () => { step = null; ns.later(drawAll); });
    ns.on("theme", () => ns.later(drawAll));
    new ResizeObserver(() => ns.later(drawAll)).observe(element);
  };
})(window.nanscope);
