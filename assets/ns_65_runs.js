// The view of all runs: which rows there are, in which order (dashboard/page/run_table.py has what they say), search
// and ticks. How a row looks is in ns_64_run_rows.js, what is done with a run in ns_66_run_actions.js.
(function (ns) {
  "use strict";

  const EVERY_MS = 2000; // while something runs
  const SOON_MS = 300; // while numbers are still to come
  const TYPING_MS = 300;
  const PATIENCE_MS = 5000; // an answer that takes longer is asked for again
  const MOST_ROWS = 64; // of one asking that names them, as in dashboard/page/callbacks/runs.py
  const MOST_SHOWN = 200;
  /** @type {Map<string, RunRowElements>} */
  const elements = new Map(); // run -> its row and cells
  /** @type {RunRow[]} */
  let rows = []; // newest first
  const unfolded = new Set(); // groups whose models somebody has asked for
  let askings = 0;
  let askedAt = -Infinity; // when all rows were asked for; not since the answer

  ns.runRow = (run) => rows.find((row) => row.run === run);
  const isOpen = () => ns.view.tab === "runs" && !document.hidden;

  const ask = (runs) => ns.setProps("runs-scope", { data: { runs, mark: (askings += 1) } });

  ns.askRuns = function () {
    if (!isOpen()) return;
    askedAt = performance.now();
    ask(null);
  };

  // A later question would replace one for all rows that has no answer yet.
  function askSome(isWanted) {
    if (!isOpen() || performance.now() - askedAt < PATIENCE_MS) return;
    const wanted = rows.filter(isWanted).slice(0, MOST_ROWS).map((row) => row.run);
    if (wanted.length) ask(wanted);
  }

  ns.takeRunRows = function (answer) {
    const fresh = new Map(answer.rows.map((row) => [row.run, row]));
    if (answer.is_whole) askedAt = -Infinity;
    rows = answer.is_whole ? answer.rows : rows.map((row) => fresh.get(row.run) || row);
    // An address may name runs that are not there.
    const compared = ns.view.compared.filter(ns.runRow);
    if (compared.length < ns.view.compared.length) ns.change({ compared }, false);
    draw();
    ns.emit("run-rows", rows);
    if (rows.some((row) => !row.is_read)) window.setTimeout(askSome, SOON_MS, (row) => !row.is_read);
  };

  // Every word that is searched for is in the row.
  /** @param {RunRow} row */
  function isFound(row) {
    const text = [row.name, row.run, row.model, row.note, ns.RUN_STATES[row.state], row.starred ? "starred" : ""].join(" ").toLowerCase();
    return ns.view.find.toLowerCase().split(/\s+/).every((word) => text.includes(word));
  }

  // A training of several models is one entry with its models inside, in the order in which they began.
  /** @param {RunRow[]} found */
  function ordered(found) {
    const groups = new Map();
    for (const row of found.slice(0, MOST_SHOWN)) groups.set(row.group, [row, ...(groups.get(row.group) || [])]);
    return [...groups.values()];
  }

  // Models made one after the other are one row until somebody unfolds it, or searches.
  /** @param {RunRow[]} models */
  const isSeries = (models) => models.length > 1 && models.every(({ member }) => member !== null);
  /** @param {RunRow[]} models */
  const isFolded = (models) => isSeries(models) && !unfolded.has(models[0].group) && !ns.view.find;

  /** @param {RunRow[]} models */
  function heading(models) {
    const row = ns.make("tr", "ns-runs-group");
    const cell = /** @type {HTMLTableCellElement} */ (ns.make("th"));
    const text = `${ns.scriptOf(models[0])} \u00b7 ${ns.modelsOf(models)}`;
    if (isSeries(models)) cell.append(foldButton(models, text));
    else ns.setText(cell, text);
    cell.colSpan = ns.RUN_CELLS.length;
    cell.scope = "rowgroup";
    row.append(cell);
    return row;
  }

  /** @param {RunRow[]} models */
  function foldButton(models, text) {
    const folds = isFolded(models), { group } = models[0];
    const counts = (of) => models.reduce((sum, row) => sum + row[of], 0);
    const found = ["critical", "warnings"].filter(counts).map((of) => ` \u00b7 ${counts(of)} ${of}`).join("");
    const button = ns.make("button", "ns-link", `${folds ? "\u25b8" : "\u25be"} ${text}${found}`);
    ns.setAttribute(button, "aria-expanded", String(!folds));
    button.dataset.group = group;
    return button;
  }

  function draw() {
    if (ns.view.tab !== "runs") return;
    const found = rows.filter(isFound);
    const groups = ordered(found);
    const wanted = [];
    for (const models of groups) {
      if (models.length > 1) wanted.push(heading(models));
      for (const data of isFolded(models) ? [] : models) {
        if (!elements.has(data.run)) elements.set(data.run, ns.makeRunRow(data.run));
        const { row } = elements.get(data.run);
        row.classList.toggle("ns-runs-member", models.length > 1);
        wanted.push(row);
      }
    }
    for (const run of elements.keys()) if (!ns.runRow(run)) elements.delete(run);
    place(wanted);
    for (const models of groups) if (!isFolded(models)) for (const data of models) ns.drawRunRow(elements.get(data.run), data);
    const all = `${ns.count(rows.length)} run${rows.length === 1 ? "" : "s"}`;
    const isMore = found.length > MOST_SHOWN ? `; the newest ${MOST_SHOWN} are shown, the search looks at all` : "";
    const count = found.length === rows.length ? all : `${ns.count(found.length)} of ${all}`;
    ns.setText(ns.byId("runs-count"), count + isMore);
    const ticked = ns.view.compared.length;
    ns.setText(ns.byId("runs-ticked"), ticked ? `${ticked} of at most ${ns.MOST_COMPARED} ticked` : `Tick up to ${ns.MOST_COMPARED} runs to compare them`);
    const input = /** @type {HTMLInputElement} */ (ns.byId("runs-search").firstElementChild);
    if (document.activeElement !== input) input.value = ns.view.find;
  }

  // A row that stays where it is is not touched: it may have the focus.
  /** @param {Element[]} wanted */
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
    ns.setAttribute(input, "aria-label", "Search runs");
    // The rows follow at once, the address when somebody stops typing.
    let timer = 0;
    input.addEventListener("input", () => {
      ns.view.find = input.value;
      draw();
      window.clearTimeout(timer);
      timer = window.setTimeout(() => ns.change({ find: ns.view.find }), TYPING_MS);
    });
    ns.byId("runs-search").append(input);
  }

  ns.drawRuns = draw;
  ns.startRuns = function () {
    makeSearch();
    ns.byId("runs-body").addEventListener("click", ({ target }) => {
      const group = target.closest("[data-group]")?.dataset.group;
      if (group) {
        if (!unfolded.delete(group)) unfolded.add(group);
        draw();
        const again = [...ns.byId("runs-body").querySelectorAll("[data-group]")].find((one) => one.dataset.group === group);
        return again?.focus();
      }
      const act = target.closest("[data-act]")?.dataset.act;
      const row = ns.runRow(target.closest("[data-run]")?.dataset.run);
      if (act && row) ns.actOnRow(act, row, elements.get(row.run));
    });
    ns.byId("runs-body").addEventListener("change", (event) => {
      const target = /** @type {HTMLInputElement} */ (event.target);
      if (target.type === "checkbox") tick(target.closest("[data-run]").dataset.run, target.checked);
    });
    ns.on("view", draw);
    ns.on("theme", draw);
    ns.on("tab", ns.askRuns);
    ns.on("runs", ns.askRuns);
    ns.on("message", (header) => header.runs && ns.askRuns());
    window.setInterval(() => askSome((row) => row.state === "running"), EVERY_MS);
    ns.askRuns();
  };
})(window.nanscope);
