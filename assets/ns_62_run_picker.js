// The run picker in the header: a button that opens the list of all runs, with search, arrows and ticks to compare.
// Only the rows in view are elements, and only of them the server is asked how far they are
// (dashboard/page/run_picker.py). How a row looks is in ns_63_picker_rows.js.
(function (ns) {
  "use strict";

  const ROW_PX = 44, HEAD_PX = 26; // also in run_picker.css
  const SLACK = 3; // rows drawn beyond either end
  const EVERY_MS = 2000;
  const SOON_MS = 60; // rows that scroll by are not asked for
  const MOST_ASKED = 64; // as in dashboard/page/callbacks/run_picker.py
  const field = ns.make("input", "ns-search ns-picker-field");
  const told = new Map(); // run -> what the server says of it beside its name
  const elements = new Map(); // run, or title of a group -> its row
  let entries = []; // {run} or {title}, each with its top and height
  let height = 0; // of all of them
  let at = -1; // the active entry
  let asked = 0, asking = 0;

  const button = () => ns.byId("run-select");
  const panel = () => ns.byId("run-picker");
  const list = () => ns.byId("run-picker-list");
  const isOpen = () => !panel().hidden;

  ns.runState = (run) => (run.ranks.some(({ state }) => state === "running") ? "running" : run.ranks.map(({ state }) => state).sort()[0] || "silent");
  const scriptOf = (run) => run.name.replace(/ \(model \d+\)$/, "").replace(` (${run.model})`, "");
  ns.scriptOf = scriptOf;
  // Models that one run makes one after the other have numbers; others are runs of one process.
  ns.modelsOf = (runs) => {
    const numbers = runs.map(({ member }) => member ?? null);
    if (numbers.includes(null) || new Set(numbers).size < numbers.length) return `${runs.length} runs of one process`;
    return `models ${Math.min(...numbers) + 1} to ${Math.max(...numbers) + 1}`;
  };

  // Every word that is searched for is in the row.
  function isFound(run, words) {
    const text = [run.name, run.run, run.model, ns.RUN_STATES[ns.runState(run)]].join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  }

  // A training of several models is one group with its models inside, in the order in which they began.
  function arrange() {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = ns.runs.filter((run) => isFound(run, words));
    const groups = new Map();
    for (const run of found) groups.set(run.group, [run, ...(groups.get(run.group) || [])]);
    entries = [...groups.values()].flatMap((models) => {
      const [first] = models;
      if (models.length === 1) return [{ run: first, name: first.name }];
      const scripts = new Set(models.map(scriptOf));
      const isSeries = models.every(({ member }) => (member ?? null) !== null);
      const one = isSeries ? `${scriptOf(first)} \u00b7 ${ns.modelsOf(models)}` : scriptOf(first);
      const together = scripts.size > 1 ? `${models.length} runs of one process` : one;
      // Trainings one after the other that somebody has named, in a sweep say, keep their names.
      const short = (run) => (run.member ?? null) === null ? run.model : `${run.model} (model ${run.member + 1})`;
      const named = models.map((run) => ({ run, name: scripts.size > 1 || !run.model ? run.name : short(run), isMember: true }));
      return [{ title: `${together} \u00b7 ${first.group.slice(-8)}`, group: first.group }, ...named];
    });
    height = 0;
    for (const entry of entries) {
      entry.top = height;
      height += entry.run ? ROW_PX : HEAD_PX;
    }
    const all = `${ns.count(ns.runs.length)} run${ns.runs.length === 1 ? "" : "s"}`;
    const text = found.length === ns.runs.length ? all : `${ns.count(found.length)} of ${all}`;
    ns.setText(ns.byId("run-picker-count"), text);
  }

  function inView() {
    const top = list().scrollTop - SLACK * ROW_PX, end = list().scrollTop + list().clientHeight + SLACK * ROW_PX;
    return entries.filter((entry) => entry.top + ROW_PX > top && entry.top < end);
  }

  // A row that stays is not made anew: somebody may be about to click it.
  function draw() {
    if (!isOpen()) return;
    const shown = inView();
    const kept = new Map();
    for (const entry of shown) {
      const key = entry.run ? entry.run.run : `group ${entry.group}`;
      const row = elements.get(key) || (entry.run ? ns.makePickerRow(entry.run.run) : ns.makePickerHead());
      kept.set(key, row);
      const number = entries.indexOf(entry);
      row.element.id = `run-picker-row-${number}`;
      row.element.style.top = entry.top + "px";
      row.element.setAttribute("aria-rowindex", String(number + 1));
      if (entry.run) ns.drawPickerRow(row, entry, told.get(entry.run.run), number === at);
      else ns.setText(row.title, entry.title);
    }
    for (const [key, { element }] of elements) if (!kept.has(key)) element.remove();
    elements.clear();
    const rows = ns.byId("run-picker-rows");
    let place = 0;
    for (const [key, row] of kept) {
      elements.set(key, row);
      if (rows.children[place] !== row.element) rows.insertBefore(row.element, rows.children[place] || null);
      place += 1;
    }
    rows.style.height = height + "px";
    list().setAttribute("aria-rowcount", String(entries.length));
    const active = entries[at]?.run;
    ns.setAttribute(field, "aria-activedescendant", active ? `run-picker-row-${at}` : "");
    ns.setText(ns.byId("run-picker-name"), active ? `${active.name} \u00b7 ${active.run} \u00b7 started ${ns.absoluteTime(active.started)}` : entries.length ? "" : "No run of that name");
  }

  function ask() {
    if (!isOpen() || document.hidden) return;
    const runs = inView().filter(({ run }) => run).map(({ run }) => run.run).slice(0, MOST_ASKED);
    if (runs.length) ns.setProps("picker-scope", { data: { runs, mark: (asked += 1) } });
  }

  function askSoon() {
    window.clearTimeout(asking);
    asking = window.setTimeout(ask, SOON_MS);
  }

  ns.takePickerRows = function (rows) {
    for (const row of rows) told.set(row.run, row);
    ns.later(draw);
  };

  // Goes to an entry, over the titles of groups, and shows it whole.
  function mark(next, direction = 1) {
    let to = Math.max(0, Math.min(entries.length - 1, next));
    while (entries[to] && !entries[to].run) to += direction;
    if (!entries[to]) to = entries.findIndex((entry) => entry.run);
    at = to;
    const entry = entries[at];
    if (entry) {
      const { scrollTop, clientHeight } = list();
      if (entry.top < scrollTop) list().scrollTop = entry.top - (at > 0 && !entries[at - 1].run ? HEAD_PX : 0);
      else if (entry.top + ROW_PX > scrollTop + clientHeight) list().scrollTop = entry.top + ROW_PX - clientHeight;
    }
    draw();
    askSoon();
  }

  function refresh() {
    if (!isOpen()) return;
    const active = entries[at]?.run?.run;
    arrange();
    ns.byId("run-picker-rows").style.height = height + "px";
    const same = entries.findIndex(({ run }) => run && run.run === active);
    if (same >= 0) at = same;
    else mark(0);
    draw();
  }

  function open() {
    panel().hidden = false;
    ns.setAttribute(button(), "aria-expanded", "true");
    field.value = "";
    field.focus();
    arrange();
    ns.byId("run-picker-rows").style.height = height + "px";
    mark(Math.max(0, entries.findIndex(({ run }) => run && run.run === ns.view.run)));
  }

  function close(isFocusKept) {
    if (!isOpen()) return;
    panel().hidden = true;
    ns.setAttribute(button(), "aria-expanded", "false");
    if (!isFocusKept) button().focus();
  }

  function choose(run) {
    if (!run) return;
    close();
    ns.chooseRun(run, true);
  }

  function tick(run) {
    if (!run) return;
    const { compared } = ns.view;
    if (compared.includes(run)) ns.change({ compared: compared.filter((each) => each !== run) });
    else if (compared.length < ns.MOST_COMPARED) ns.change({ compared: [...compared, run] });
    draw();
  }

  const PAGE = 8;
  const MOVES = {
    ArrowDown: () => mark(at + 1),
    ArrowUp: () => mark(at - 1, -1),
    PageDown: () => mark(at + PAGE),
    PageUp: () => mark(at - PAGE, -1),
    Enter: (event) => (event.shiftKey ? tick : choose)(entries[at]?.run?.run),
    Escape: () => close(),
  };

  function press(event) {
    if (!(event.key in MOVES) || event.isComposing || (event.key === "Enter" && event.target.type === "checkbox")) return;
    event.preventDefault();
    event.stopPropagation();
    MOVES[event.key](event);
  }

  // Made here: Dash's own inputs take no roles.
  function makeField() {
    Object.assign(field, { type: "text", placeholder: "Search runs", autocomplete: "off", spellcheck: false, maxLength: 200 });
    const attributes = {
      role: "combobox", "aria-expanded": "true", "aria-haspopup": "grid", "aria-controls": "run-picker-list", "aria-autocomplete": "list",
    };
    for (const [name, value] of Object.entries(attributes)) ns.setAttribute(field, name, value);
    ns.setAttribute(field, "aria-label", "Search runs");
    ns.byId("run-picker-search").append(field);
    field.addEventListener("input", () => { arrange(); list().scrollTop = 0; mark(0); });
  }

  // What the button says of the run that is shown.
  ns.drawRunButton = function (shown) {
    const state = shown ? ns.runState(shown) : "";
    const name = shown ? shown.name : ns.runs ? (ns.runs.length ? ns.view.run || "" : "no run yet") : "connecting";
    ns.setText(ns.byId("run-name"), name);
    ns.setText(ns.byId("run-id"), shown ? shown.run.slice(-8) : "");
    ns.setAttribute(button(), "data-state", shown ? ns.RUN_ICONS[state] || state : "connecting");
    ns.setAttribute(button(), "aria-label", shown ? `Run: ${name}, ${ns.RUN_STATES[state] || state}` : `Run: ${name}`);
    ns.setTitle(button(), shown ? `${shown.name} \u00b7 ${shown.run}` : "");
    refresh();
  };

  ns.startRunPicker = function () {
    makeField();
    button().addEventListener("click", () => (isOpen() ? close() : ns.runs && open()));
    button().addEventListener("keydown", (event) => {
      if (event.key !== "ArrowDown" || isOpen() || !ns.runs) return;
      event.preventDefault();
      open();
    });
    panel().addEventListener("keydown", press);
    list().addEventListener("scroll", () => { ns.later(draw); askSoon(); }, { passive: true });
    list().addEventListener("click", ({ target }) => {
      const run = target.closest("[data-run]")?.dataset.run;
      if (target.closest(".ns-picker-tick")) tick(run);
      else choose(run);
    });
    const leave = (target) => target?.closest(".ns-run") || close(true);
    document.addEventListener("pointerdown", ({ target }) => leave(target), true);
    panel().addEventListener("focusout", ({ relatedTarget }) => relatedTarget && leave(relatedTarget));
    ns.on("view", () => ns.later(draw));
    window.setInterval(() => { ask(); draw(); }, EVERY_MS);
  };
})(window.nanscope);
