// The view of all runs: a row each, made here from what the server knows of them (dashboard/page/run_table.py);
// search, ticks, stars, notes. What is done with a run goes through ns.actOnRun (ns_66_run_actions.js).
(function (ns) {
  "use strict";

  const CELLS = ["tick", "name", "state", "step", "best", "loss", "faults", "started", "note", "delete"];
  const NUMBERS = ["step", "best"];
  const WORDS = { running: "live", finished: "ended", exception: "exception", killed: "killed", silent: "silent" };
  const ICONS = { running: "live", silent: "lagging" }; // as the one button of the header has them
  const EVERY_MS = 2000; // while something runs
  const SOON_MS = 300; // while numbers are still to come
  const elements = new Map(); // run -> its row and cells
  let rows = []; // newest first
  let askings = 0;

  ns.runRow = (run) => rows.find((row) => row.run === run);
  ns.runLabel = (row) => `${row.name} \u00b7 ${row.run.slice(-8)}`;
  const isOpen = () => ns.view.tab === "runs" && !document.hidden;

  ns.askRuns = function () {
    if (isOpen()) ns.setProps("runs-scope", { data: { mark: (askings += 1) } });
  };

  ns.takeRunRows = function (list) {
    rows = list;
    draw();
    ns.emit("run-rows", rows);
    if (rows.some((row) => !row.is_read)) window.setTimeout(ns.askRuns, SOON_MS);
  };

  // Every word that is searched for is in the row.
  function isFound(row) {
    const text = [row.name, row.run, row.model, row.note, WORDS[row.state], row.starred ? "starred" : ""].join(" ").toLowerCase();
    return ns.view.find.toLowerCase().split(/\s+/).every((word) => text.includes(word));
  }

  // A training of several models is one entry with its models inside, in the order in which they began.
  function ordered() {
    const groups = new Map();
    for (const row of rows) if (isFound(row)) groups.set(row.group, [row, ...(groups.get(row.group) || [])]);
    return [...groups.values()];
  }

  function heading(models) {
    const row = ns.make("tr", "ns-runs-group");
    const cell = ns.make("th", "", `${models[0].name.replace(` (${models[0].model})`, "")} \u00b7 ${models.length} runs of one process`);
    cell.colSpan = CELLS.length;
    cell.scope = "rowgroup";
    row.append(cell);
    return row;
  }

  function button(className, act) {
    const made = ns.make("button", className);
    made.type = "button";
    made.dataset.act = act;
    return made;
  }

  function makeRow(run) {
    const row = ns.make("tr");
    row.dataset.run = run;
    const cells = {};
    for (const name of CELLS) {
      cells[name] = ns.make(name === "name" ? "th" : "td", `ns-runs-${name}${NUMBERS.includes(name) ? " ns-number" : ""}`);
      row.append(cells[name]);
    }
    cells.name.scope = "row";
    const parts = {
      tick: ns.make("input"), swatch: ns.make("span", "ns-runs-swatch"), open: button("ns-link ns-runs-open", "open"),
      id: ns.make("span", "ns-small"), star: button("ns-runs-star", "star"), state: ns.make("span", "ns-state"),
      icon: ns.make("span", "ns-icon"), word: ns.make("span"), spark: ns.make("canvas", "ns-runs-spark"),
      note: button("ns-runs-edit", "note"), remove: button("ns-button ns-runs-remove", "delete"),
    };
    parts.tick.type = "checkbox";
    for (const each of [parts.icon, parts.swatch, parts.spark]) each.setAttribute("aria-hidden", "true");
    parts.state.append(parts.icon, parts.word);
    cells.tick.append(parts.tick);
    cells.name.append(parts.swatch, parts.open, " ", parts.id, " ", parts.star);
    cells.state.append(parts.state);
    cells.loss.append(parts.spark);
    cells.note.append(parts.note);
    cells.delete.append(parts.remove);
    return { row, cells, parts };
  }

  function spark(canvas, values, colour) {
    const context = canvas.getContext("2d");
    const width = (canvas.width = canvas.clientWidth), height = (canvas.height = canvas.clientHeight);
    const finite = values.filter((value) => value !== null);
    if (finite.length < 2) return;
    const low = Math.min(...finite), span = Math.max(...finite) - low || 1;
    context.strokeStyle = colour;
    context.beginPath();
    let isDown = false;
    values.forEach((value, index) => {
      const x = (index / (values.length - 1)) * (width - 2) + 1;
      if (value !== null) context[isDown ? "lineTo" : "moveTo"](x, height - 2 - ((value - low) / span) * (height - 4));
      isDown = value !== null;
    });
    context.stroke();
  }

  const faultOf = (count, icon, severity) => {
    const part = ns.make("span", `ns-fault-${severity}`, `${icon} ${ns.count(count)}`);
    part.append(ns.make("span", "ns-hidden", ` ${severity} `));
    part.title = `${ns.count(count)} ${severity}`;
    return part;
  };

  function drawFaults(cell, { critical, warnings }) {
    const key = `${critical} ${warnings}`;
    if (cell.dataset.key === key) return;
    cell.dataset.key = key;
    const parts = [];
    if (critical) parts.push(faultOf(critical, "\u25c6", "critical"));
    if (warnings) parts.push(faultOf(warnings, "\u25b2", "warning"));
    cell.replaceChildren(...(parts.length ? parts : ["none"]));
  }

  const absolute = (time) => new Date(time * 1000).toLocaleString();
  const ago = (time) => (time > ns.now() ? absolute(time) : `${ns.seconds(ns.now() - time)} ago`);

  function drawRow({ row, cells, parts }, data) {
    const at = ns.view.compared.indexOf(data.run);
    const isLeaving = ns.isLeaving(data.run);
    row.classList.toggle("ns-leaving", isLeaving);
    row.classList.toggle("ns-ticked", at >= 0);
    if (data.run === ns.view.run) row.setAttribute("aria-current", "true");
    else row.removeAttribute("aria-current");
    parts.tick.checked = at >= 0;
    parts.tick.disabled = at < 0 && ns.view.compared.length >= ns.MOST_COMPARED;
    ns.setAttribute(parts.tick, "aria-label", `Compare ${ns.runLabel(data)}`);
    parts.swatch.hidden = at < 0;
    const colours = ns.theme().colours;
    const colour = at < 0 ? colours.muted : colours.series[at % colours.series.length];
    parts.swatch.style.background = colour;
    ns.setText(parts.open, data.name);
    ns.setText(parts.id, data.run.slice(-8));
    parts.open.title = `${data.name} \u00b7 ${data.run}\nShow this run`;
    ns.setText(parts.star, data.starred ? "\u2605" : "\u2606");
    ns.setAttribute(parts.star, "aria-pressed", String(data.starred));
    ns.setAttribute(parts.star, "aria-label", `Keep ${ns.runLabel(data)}`);
    parts.star.title = data.starred ? "Kept: nothing deletes it. Take the star off" : "Star: keep this run";
    const isLive = data.state === "running";
    ns.setAttribute(parts.state, "data-state", ICONS[data.state] || data.state);
    ns.setText(parts.word, isLive ? WORDS.running : `${WORDS[data.state] || data.state} ${ago(data.written)}`);
    parts.state.title = `Newest step: ${absolute(data.written)}`;
    ns.setText(cells.step, data.step === null ? "\u2013" : ns.count(data.step));
    ns.setText(cells.best, data.best !== null ? ns.significant(data.best) : data.is_read ? "\u2013" : "\u2026");
    if (row.isConnected) spark(parts.spark, data.losses, colour);
    drawFaults(cells.faults, data);
    ns.setText(cells.started, ago(data.started));
    cells.started.title = absolute(data.started);
    if (!ns.isEditing(cells.note)) {
      ns.setText(parts.note, data.note || "Add a note");
      parts.note.classList.toggle("ns-no-note", !data.note);
      ns.setAttribute(parts.note, "aria-label", `Note on ${ns.runLabel(data)}: ${data.note || "none"}`);
    }
    ns.setText(parts.remove, isLeaving ? "Undo" : "Delete");
    ns.setAttribute(parts.remove, "aria-label", `${isLeaving ? "Keep" : "Delete"} ${ns.runLabel(data)}`);
    parts.remove.disabled = !isLeaving && data.stays !== "";
    parts.remove.title = data.stays;
  }

  function draw() {
    if (ns.view.tab !== "runs") return;
    const groups = ordered();
    const wanted = [];
    for (const models of groups) {
      if (models.length > 1) wanted.push(heading(models));
      for (const data of models) {
        if (!elements.has(data.run)) elements.set(data.run, makeRow(data.run));
        const { row } = elements.get(data.run);
        row.classList.toggle("ns-runs-member", models.length > 1);
        wanted.push(row);
      }
    }
    for (const run of elements.keys()) if (!ns.runRow(run)) elements.delete(run);
    place(wanted);
    for (const models of groups) for (const data of models) drawRow(elements.get(data.run), data);
    const found = groups.reduce((sum, models) => sum + models.length, 0);
    const all = `${ns.count(rows.length)} run${rows.length === 1 ? "" : "s"}`;
    ns.setText(ns.byId("runs-count"), found === rows.length ? all : `${ns.count(found)} of ${all}`);
    const ticked = ns.view.compared.length;
    ns.setText(ns.byId("runs-ticked"), ticked ? `${ticked} of at most ${ns.MOST_COMPARED} ticked` : `Tick up to ${ns.MOST_COMPARED} runs to compare them`);
    const input = ns.byId("runs-search").firstElementChild;
    if (document.activeElement !== input) input.value = ns.view.find;
  }

  // A row that stays where it is is not touched: it may have the focus.
  function place(wanted) {
    const body = ns.byId("runs-body");
    const kept = new Set(wanted);
    for (const row of [...body.children]) if (!kept.has(row)) row.remove();
    wanted.forEach((row, index) => {
      if (body.children[index] !== row) body.insertBefore(row, body.children[index] || null);
    });
  }

  function tick(run, isTicked) {
    const others = ns.view.compared.filter((each) => each !== run);
    ns.change({ compared: isTicked ? [...others, run].slice(-ns.MOST_COMPARED) : others });
  }

  function makeSearch() {
    const input = ns.make("input", "ns-search");
    Object.assign(input, { type: "search", placeholder: "Search runs, notes, states", autocomplete: "off", maxLength: 200 });
    input.setAttribute("aria-label", "Search runs");
    input.addEventListener("input", () => ns.change({ find: input.value }));
    ns.byId("runs-search").append(input);
  }

  ns.drawRuns = draw;
  ns.startRuns = function () {
    makeSearch();
    ns.byId("runs-body").addEventListener("click", ({ target }) => {
      const act = target.closest("[data-act]")?.dataset.act;
      const row = ns.runRow(target.closest("[data-run]")?.dataset.run);
      if (act && row) ns.actOnRow(act, row, elements.get(row.run));
    });
    ns.byId("runs-body").addEventListener("change", ({ target }) => {
      if (target.type === "checkbox") tick(target.closest("[data-run]").dataset.run, target.checked);
    });
    ns.on("view", draw);
    ns.on("theme", draw);
    ns.on("tab", ns.askRuns);
    ns.on("message", (header) => header.runs && ns.askRuns());
    window.setInterval(() => rows.some((row) => row.state === "running") && ns.askRuns(), EVERY_MS);
    ns.askRuns();
  };
})(window.nanscope);
