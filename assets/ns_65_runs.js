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
  const elements = new Map(); // run, or `series RUN` -> its row and cells
  /** @type {RunRow[]} */
  let rows = []; // newest first
  const unfolded = new Set(); // runs whose series somebody has unfolded
  let total = 0; // the store's; the rows are the newest
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
    total = answer.total;
    rows = answer.is_whole ? answer.rows : rows.map((row) => fresh.get(row.run) || row);
    // An address may name runs that are not there.
    const compared = ns.view.compared.filter(ns.runRow);
    if (compared.length < ns.view.compared.length) ns.change({ compared }, false);
    draw();
    ns.emit("run-rows", rows);
    if (rows.some((row) => !row.is_read)) window.setTimeout(askSome, SOON_MS, (row) => !row.is_read);
  };

  /** @param {RunRow} row */
  const isFound = (row) => ns.isFoundBy(ns.view.find, row.run, row.series ?? row.run, [row.name, row.model, row.note, ns.RUN_STATES[row.state], row.starred ? "starred" : ""]);

  // What the one row of a series says of its models: it is that of the run that makes them.
  /** @param {RunPart<RunRow>} part @returns {RunLine} */
  function seriesRow({ run, models, name, title }) {
    const newest = models.at(-1), own = ns.runRow(run) ?? models[0];
    const bests = models.map(({ best }) => best), finite = bests.filter((best) => best !== null);
    const sum = (of) => models.reduce((total, row) => total + row[of], 0);
    return {
      ...own, name, label: title, isCurrent: models.some((row) => row.run === ns.view.run), isFolded: isFolded(run), step: newest.step, written: newest.written,
      state: models.some(({ state }) => state === "running") ? "running" : newest.state,
      best: finite.length ? Math.min(...finite) : null, losses: bests, is_read: models.every((row) => row.is_read),
      critical: sum("critical"), warnings: sum("warnings"),
    };
  }

  // A series is one row until somebody unfolds it, or searches.
  const isFolded = (run) => !unfolded.has(run) && !ns.view.find;

  function heading({ script, together }) {
    const row = ns.make("tr", "ns-runs-group");
    const cell = /** @type {HTMLTableCellElement} */ (ns.make("th", "", script ? `${script} \u00b7 ${together}` : together));
    cell.colSpan = ns.RUN_CELLS.length;
    cell.scope = "rowgroup";
    row.append(cell);
    return row;
  }

  // The rows of a group, in order: an element and what it says, nothing for a title.
  /** @param {RunGroup<RunRow>} group @returns {[Element, RunRowElements | null, RunLine | null][]} */
  function rowsOf({ script, together, parts, nameOf }) {
    /** @type {[Element, RunRowElements | null, RunLine | null][]} */
    const listed = [];
    const list = (key, data, isInside) => {
      if (!elements.has(key)) elements.set(key, ns.makeRunRow(data.run));
      const made = elements.get(key);
      made.row.classList.toggle("ns-runs-member", isInside);
      listed.push([made.row, made, data]);
    };
    if (together) listed.push([heading({ script, together }), null, null]);
    for (const part of parts) {
      if (part.isSeries) list(`series ${part.run}`, seriesRow(part), together !== "");
      const shown = part.isSeries && isFolded(part.run) ? [] : part.found;
      for (const data of shown) list(data.run, part.isSeries ? { ...data, label: nameOf(data, part) } : data, together !== "" || part.isSeries);
    }
    return listed;
  }

  function draw() {
    if (ns.view.tab !== "runs") return;
    const groups = ns.groupRuns(rows, isFound);
    const listed = [];
    for (const group of groups) if (listed.length < MOST_SHOWN) listed.push(...rowsOf(group));
    const isMore = listed.length > MOST_SHOWN;
    listed.splice(MOST_SHOWN);
    const known = new Set(rows.flatMap(({ run, series }) => [run, `series ${series}`]));
    for (const key of elements.keys()) if (!known.has(key)) elements.delete(key);
    place(listed.map(([row]) => row));
    for (const [, made, data] of listed) if (made) ns.drawRunRow(made, data);
    const found = groups.reduce((sum, { parts }) => sum + parts.reduce((all, part) => all + part.found.length, 0), 0);
    ns.setText(ns.byId("runs-count"), ns.countRuns(rows, found) + ns.leftOut(rows.length, total, isMore ? MOST_SHOWN : 0));
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
      const act = target.closest("[data-act]")?.dataset.act, element = target.closest("[data-run]");
      if (!act || !element) return;
      const [, made] = [...elements].find(([, { row }]) => row === element) ?? [];
      if (act !== "open" || made?.shown.isFolded === undefined) return made && ns.actOnRow(act, made.shown, made);
      if (!unfolded.delete(made.shown.run)) unfolded.add(made.shown.run);
      draw();
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
