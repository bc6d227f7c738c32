// The whole run above the tracks: its loss, its events, and the part that is on screen, which can be dragged. A part that
// reaches the newest step follows it. Keys W A S D zoom and pan.
(function (ns) {
  "use strict";

  const EDGE_PX = 6;
  const LEAST_STEPS = 4;
  const PAN = 0.25, ZOOM = 2; // of what is shown, by a key
  let canvas = null;
  let line = { run: null, x: [], y: [] }; // the loss of the whole run, as it was known last
  let oldest = 0, newest = null, isRunning = false; // the run's first step, once all of it has been shown
  let drag = null; // {kind, from, range}

  const whole = () => [oldest, Math.max(oldest + 10, (newest ?? 0) + 1)];

  function shownRange() {
    return ns.range || whole();
  }

  function xOf(step) {
    const [first, end] = whole();
    return ((step - first) / (end - first)) * canvas.clientWidth;
  }

  function stepOf(clientX) {
    const box = canvas.getBoundingClientRect();
    const [first, end] = whole();
    return first + ((clientX - box.left) / box.width) * (end - first);
  }

  // Shows steps [first, end): still, unless they reach the newest step of a run that goes on.
  function show(first, end) {
    const [low, high] = whole();
    const size = Math.max(LEAST_STEPS, Math.min(high - low, end - first));
    const begin = Math.round(Math.max(low, Math.min(high - size, first)));
    const last = Math.round(begin + size);
    if (begin <= low && last >= high) ns.change({ window: null, paused: false, first: null, end: null });
    else if (last >= high && isRunning) ns.change({ window: last - begin, paused: false, first: null, end: null });
    else {
      ns.view.window = null;
      ns.zoom(begin, last - 1);
    }
  }

  ns.showSteps = show;
  ns.pan = (share) => { const [first, end] = shownRange(); const by = share * (end - first); show(first + by, end + by); };
  ns.zoomBy = function (factor) {
    const [first, end] = shownRange();
    const at = ns.crosshair() ?? (first + end) / 2;
    show(at - (at - first) / factor, at + (end - at) / factor);
  };

  function drawLine(context, width, height) {
    const finite = line.y.filter(Number.isFinite);
    if (finite.length < 2) return;
    const low = finite.reduce((a, b) => Math.min(a, b)), high = finite.reduce((a, b) => Math.max(a, b));
    context.strokeStyle = ns.theme().colours.muted;
    context.lineWidth = 1;
    context.beginPath();
    let isDown = false;
    const [first, end] = whole(), pixels = canvas.clientWidth / (end - first);
    line.y.forEach((value, index) => {
      if (Number.isFinite(value)) {
        const y = height - 3 - ((value - low) / (high - low || 1)) * (height - 8);
        context[isDown ? "lineTo" : "moveTo"]((line.x[index] - first) * pixels, y);
      }
      isDown = Number.isFinite(value);
    });
    context.stroke();
  }

  function drawEvents(context) {
    const colours = ns.theme().colours.severities;
    // The severest last: it lies on top.
    for (const order of [2, 1, 0]) {
      context.fillStyle = colours[order];
      for (const row of ns.eventRows()) {
        if (row.severity_order === order) context.fillRect(xOf(row.step) - 1, 1, order === 2 ? 1 : 2, order === 2 ? 3 : 6);
      }
    }
  }

  function draw() {
    if (!canvas || !canvas.clientWidth || !ns.templates) return;
    const scale = window.devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
    canvas.width = width * scale;
    canvas.height = height * scale;
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    drawLine(context, width, height);
    drawEvents(context);
    ns.drawNoteFlags(context, xOf);
    const [first, end] = shownRange();
    const left = xOf(first), right = Math.max(left + 3, xOf(Math.min(end, whole()[1])));
    context.fillStyle = ns.theme().colours.series[0];
    context.globalAlpha = 0.14;
    context.fillRect(left, 0, right - left, height);
    context.globalAlpha = 1;
    context.fillRect(left, 0, 2, height);
    context.fillRect(right - 2, 0, 2, height);
    const [low, high] = whole();
    canvas.setAttribute("aria-valuemin", String(low));
    canvas.setAttribute("aria-valuemax", String(high - 1));
    canvas.setAttribute("aria-valuenow", String(Math.round(first)));
    canvas.setAttribute("aria-valuetext", `steps ${ns.count(first)} to ${ns.count(Math.max(first, end - 1))}`);
  }

  // At an edge of the part it is made larger or smaller, inside of it is moved, elsewhere a new one begins.
  function begin(event) {
    const range = shownRange(), x = event.clientX - canvas.getBoundingClientRect().left;
    const near = (step) => Math.abs(xOf(step) - x) <= EDGE_PX;
    const isWhole = range[0] <= oldest && range[1] >= whole()[1];
    const kind = near(range[0]) ? "first" : near(range[1]) ? "end" : !isWhole && x > xOf(range[0]) && x < xOf(range[1]) ? "move" : "new";
    drag = { kind, from: stepOf(event.clientX), range };
    canvas.setPointerCapture(event.pointerId);
  }

  function moveTo(event) {
    if (!drag) return;
    const to = stepOf(event.clientX), [first, end] = drag.range;
    if (drag.kind === "first") show(Math.min(to, end - LEAST_STEPS), end);
    else if (drag.kind === "end") show(first, Math.max(to, first + LEAST_STEPS));
    else if (drag.kind === "move") show(first + to - drag.from, end + to - drag.from);
    else if (Math.abs(to - drag.from) >= LEAST_STEPS / 2) show(Math.min(to, drag.from), Math.max(to, drag.from));
  }

  ns.startStrip = function () {
    canvas = ns.byId("strip");
    canvas.addEventListener("pointerdown", begin);
    canvas.addEventListener("pointermove", moveTo);
    for (const kind of ["pointerup", "pointercancel"]) canvas.addEventListener(kind, () => { drag = null; });
    canvas.addEventListener("dblclick", ns.reset);
    canvas.addEventListener("keydown", (event) => {
      const keys = { ArrowLeft: () => ns.pan(-PAN), ArrowRight: () => ns.pan(PAN), ArrowUp: () => ns.zoomBy(ZOOM), ArrowDown: () => ns.zoomBy(1 / ZOOM) };
      if (!(event.key in keys)) return;
      event.preventDefault();
      keys[event.key]();
    });
    ns.on("message", (header) => {
      if (header.run === null || header.run !== ns.view.run) return;
      newest = header.newestStep;
      isRunning = header.state === "running" || header.state === "silent";
      if (line.run !== header.run) { line = { run: header.run, x: [], y: [] }; oldest = 0; }
      const isWhole = ns.view.first === null && ns.view.end === null && ns.view.window === null;
      if (isWhole && header.range) oldest = header.range[0] ?? 0;
      if (header.charts && isWhole) Object.assign(line, { x: ns.array("loss/loss/line/x"), y: ns.array("loss/loss/line/y") });
      ns.later(draw);
    });
    for (const name of ["range", "rows", "theme", "tab", "notes"]) ns.on(name, () => ns.later(draw));
    ns.on("view", ({ run }) => { if (run !== line.run) newest = null; ns.later(draw); });
    new ResizeObserver(() => ns.later(draw)).observe(canvas);
  };
})(window.nanscope);
