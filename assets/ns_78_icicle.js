// Modules by time in the view Profile: each as wide as its time at the crosshair's step, its children below it. Where the
// boxes lie says dashboard/page/views/module_icicle.py; which step they are of, dashboard/page/callbacks/module_times.py.
(function (ns) {
  "use strict";

  const ROW = 22, GAP = 1, TEXT_PX = 34; // of a box: height, room to the next one, and least width for its name
  const SETTLE_MS = 150; // the crosshair rests so long before its step is asked for
  const LEAST_MS = 2000; // between two askings of a run that goes on
  const FILL_ALPHA = 0.42, CHOSEN_ALPHA = 0.8;
  const NONE = "No times yet. Level `advanced` measures them every 20 steps; a profile of the next steps has them too.";
  /** @type {ModuleTimes | null} */
  let shown = null;
  /** @type {number | null} */
  let chosen = null; // index of a box
  let asked = "", askedAt = -Infinity, timer = 0, news = "", place = "";

  const canvas = () => ns.byId("icicle-canvas");
  const boxes = () => (shown ? shown.boxes : []);

  // ------------------------------------------------------------------------------------------------- asking

  function ask() {
    timer = 0;
    const { run, rank, tab } = ns.view, step = ns.crosshair();
    if (run === null || tab !== "profile") return;
    const key = [run, rank, step ?? news].join("|");
    if (key === asked) return;
    asked = key;
    askedAt = performance.now();
    ns.setProps("module-times-scope", { data: { run, rank, step, mark: askedAt } });
  }

  function askIn(milliseconds) {
    window.clearTimeout(timer);
    timer = window.setTimeout(ask, milliseconds);
  }

  ns.takeModuleTimes = function (answer) {
    if (answer.run !== ns.view.run || answer.rank !== ns.view.rank) return;
    const name = chosen === null ? null : boxes()[chosen]?.name;
    shown = answer;
    const found = answer.boxes.findIndex((box) => box.name === name);
    chosen = found < 0 ? null : found;
    draw();
  };

  // ------------------------------------------------------------------------------------------------- words

  const nameOf = (box) => box.name || "(root)";
  const milliseconds = (seconds) => `${ns.significant(1000 * seconds)} ms`;
  const percent = (share) => `${ns.significant(100 * share)} %`;

  function details(box) {
    const known = [["forward", box.forward_s], ["backward", box.backward_s], ["without its children", box.self_s]];
    return known.filter(([, seconds]) => seconds !== null).map(([what, seconds]) => `${what} ${milliseconds(Number(seconds))}`);
  }
  const words = (box) => `${milliseconds(box.total_s)}, ${percent(box.width)} (${details(box).join(", ")})`;

  // For the table of values.
  ns.icicleCells = (most) => boxes().slice(0, most).map((box) => [nameOf(box), words(box)]);
  ns.icicleTitle = () => (shown && shown.boxes.length ? `Time by module, ${shown.title.toLowerCase()}` : "");
  // For tests and whoever looks under the hood: what is drawn.
  ns.icicleBoxes = boxes;

  // ------------------------------------------------------------------------------------------------- painting

  function paintBox(context, box, width, isChosen) {
    const { kinds, text } = ns.theme().colours;
    const x = box.at * width, w = Math.max(1, box.width * width - GAP), y = box.depth * ROW;
    context.globalAlpha = isChosen ? CHOSEN_ALPHA : FILL_ALPHA;
    context.fillStyle = kinds[box.depth % kinds.length];
    context.fillRect(x, y, w, ROW - GAP);
    context.globalAlpha = 1;
    if (w < TEXT_PX) return;
    context.save();
    context.beginPath();
    context.rect(x, y, w - 3, ROW);
    context.clip();
    context.fillStyle = text;
    context.fillText(ns.visible(box.name.split(".").pop() || "(root)"), x + 5, y + ROW / 2);
    context.restore();
  }

  function paint() {
    const element = canvas(), width = element.parentElement.clientWidth;
    if (!shown || !width) return;
    const height = ROW * (1 + Math.max(0, ...boxes().map((box) => box.depth)));
    Object.assign(element.style, { width: width + "px", height: height + "px" });
    const context = ns.freshContext(element, width, height);
    context.font = ns.FONT;
    context.textAlign = "left";
    context.textBaseline = "middle";
    boxes().forEach((box, index) => paintBox(context, box, width, index === chosen));
  }

  function draw() {
    const all = boxes(), element = canvas();
    element.hidden = !all.length;
    const few = shown && shown.hidden ? ` ${ns.count(shown.hidden)} modules are too short to be seen.` : "";
    ns.setText(ns.byId("icicle-title"), all.length ? shown.title : "");
    ns.setText(ns.byId("icicle-note"), all.length ? shown.note + few : shown ? NONE : "");
    const box = all[chosen ?? 0];
    ns.setAttribute(element, "aria-valuemax", String(Math.max(0, all.length - 1)));
    ns.setAttribute(element, "aria-valuenow", String(chosen ?? 0));
    ns.setAttribute(element, "aria-valuetext", box ? `${nameOf(box)}: ${words(box)}` : "no module");
    paint();
  }

  // ------------------------------------------------------------------------------------------------- a module

  function choose(index, event) {
    if (index === chosen && !event) return;
    chosen = index;
    const box = index === null ? null : boxes()[index], tooltip = ns.byId("tooltip");
    tooltip.hidden = !box || !event;
    if (!tooltip.hidden) {
      const lines = [`${milliseconds(box.total_s)}, ${percent(box.width)} of the model`, ...details(box)];
      tooltip.replaceChildren(ns.make("b", "", nameOf(box)), ...lines.map((line) => ns.make("div", "", line)), ns.make("div", "ns-small", "click: its statistics"));
      const left = Math.min(event.clientX + 14, window.innerWidth - tooltip.offsetWidth - 8);
      Object.assign(tooltip.style, { left: left + "px", top: Math.min(event.clientY + 14, window.innerHeight - 110) + "px" });
    }
    ns.later(draw);
  }

  function indexAt(event) {
    const rect = canvas().getBoundingClientRect();
    const depth = Math.floor((event.clientY - rect.top) / ROW), share = (event.clientX - rect.left) / rect.width;
    const found = boxes().findIndex((box) => box.depth === depth && box.at <= share && share < box.at + box.width);
    return found < 0 ? null : found;
  }

  // The box that an arrow leads to: a child, the parent, or the next one of the row.
  function neighbour(index, key) {
    const all = boxes(), box = all[index];
    if (key === "Home") return 0;
    if (key === "ArrowDown") return all[index + 1]?.depth === box.depth + 1 ? index + 1 : index;
    if (key === "ArrowUp") return Math.max(0, all.slice(0, index).findLastIndex((other) => other.depth === box.depth - 1));
    const row = all.map((_, at) => at).filter((at) => all[at].depth === box.depth);
    return row[row.indexOf(index) + (key === "ArrowRight" ? 1 : -1)] ?? index;
  }

  function move(event) {
    const all = boxes();
    if (!all.length || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter") return ns.openRow(all[chosen ?? 0].name);
    if (!["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home"].includes(event.key)) return;
    event.preventDefault();
    choose(chosen === null ? 0 : neighbour(chosen, event.key), null);
  }

  ns.startIcicle = function () {
    const element = canvas();
    element.addEventListener("pointermove", (event) => choose(indexAt(event), event));
    for (const kind of ["pointerleave", "blur"]) element.addEventListener(kind, () => choose(null, null));
    element.addEventListener("keydown", move);
    element.addEventListener("click", (event) => { const box = boxes()[indexAt(event) ?? -1]; if (box) ns.openRow(box.name); });
    ns.on("crosshair", () => askIn(SETTLE_MS));
    ns.on("theme", () => ns.later(draw));
    ns.on("message", (header) => {
      if (header.run === null || header.run !== ns.view.run) return;
      const now = [header.newestStep, header.documents].join();
      if (now === news) return;
      news = now;
      if (!timer) askIn(Math.max(0, askedAt + LEAST_MS - performance.now()));
    });
    ns.on("view", ({ run, rank, tab }) => {
      const now = [run, rank, tab].join("|");
      if (now === place) return;
      place = now;
      if (shown && (shown.run !== run || shown.rank !== rank)) { shown = chosen = null; draw(); }
      askIn(0);
    });
    new ResizeObserver(() => ns.later(paint)).observe(element.parentElement);
  };
})(window.nanscope);
