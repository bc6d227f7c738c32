// The run picker in the header: a button that opens the list of all runs, with search, arrows and ticks to compare.
// Only the rows in view are elements, and only of them the server is asked how far they are
// (dashboard/page/run_picker.py). How a row looks is in ns_63_picker_rows.js.
(function (ns) {
  "use strict";

  const ROW_PX = 44, HEAD_PX = 26; // also in run_picker.css
  const SLACK = 3; // rows drawn beyond either end
  const EVERY_MS = 2000;
  const SOON_MS = 60; // rows that scroll by are not asked for
  const MOST_ASKED = 128; // as in dashboard/page/callbacks/run_picker.py
  const field = ns.make("input", "ns-search ns-picker-field");
  const told = new Map(); // run -> what the server says of it beside its name
  const elements = new Map(); // run, `series RUN` or `group GROUP` -> its row
  const unfolded = new Set(); // runs whose series somebody has unfolded
  let entries = []; // of a run, a series of models, or the title of a group; each with its top
  let height = 0; // of all of them
  let at = -1; // the active entry
  let asked = 0, asking = 0;

  const button = () => ns.byId("run-select");
  const panel = () => ns.byId("run-picker");
  const list = () => ns.byId("run-picker-list");
  const isOpen = () => !panel().hidden;
  const isChoice = ({ run, series }) => run !== undefined || series !== undefined;
  const keyOf = ({ run, series, group }) => run?.run ?? (series ? `series ${series.run}` : `group ${group}`);

  const isFound = (run) => ns.isFoundBy(field.value, run.run, run.series ?? run.run, [run.name, run.model, ns.RUN_STATES[ns.runState(run)]]);
  const isFolded = (run) => !unfolded.has(run) && !field.value.trim();

  // A series is one row that unfolds; where there is a search it shows what is found.
  function entriesOf({ group, script, together, parts, nameOf }) {
    const listed = parts.flatMap((part) => {
      const shown = part.isSeries && isFolded(part.run) ? [] : part.found;
      const rows = shown.map((run) => ({ run, name: nameOf(run, part), isMember: part.isSeries || together !== "" }));
      return part.isSeries ? [{ series: part, isFolded: isFolded(part.run), isMember: together !== "" }, ...rows] : rows;
    });
    return together ? [{ title: `${script || together} \u00b7 ${group.slice(-8)}`, group }, ...listed] : listed;
  }

  function arrange() {
    const groups = ns.groupRuns(ns.runs, isFound);
    const found = groups.reduce((sum, { parts }) => sum + parts.reduce((all, part) => all + part.found.length, 0), 0);
    entries = groups.flatMap(entriesOf);
    height = 0;
    for (const entry of entries) {
      entry.top = height;
      height += isChoice(entry) ? ROW_PX : HEAD_PX;
    }
    ns.setText(ns.byId("run-picker-count"), ns.countRuns(ns.runs, found));
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
      const key = keyOf(entry);
      const row = elements.get(key) || (isChoice(entry) ? ns.makePickerRow(key) : ns.makePickerHead());
      kept.set(key, row);
      const number = entries.indexOf(entry);
      row.element.id = `run-picker-row-${number}`;
      row.element.style.top = entry.top + "px";
      row.element.setAttribute("aria-rowindex", String(number + 1));
      if (entry.run) ns.drawPickerRow(row, entry, told.get(entry.run.run), number === at);
      else if (entry.series) ns.drawPickerSeries(row, entry, told, number === at);
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
    const active = entries[at], run = active?.run ?? active?.series?.models[0];
    ns.setAttribute(field, "aria-activedescendant", run ? `run-picker-row-${at}` : "");
    ns.setText(ns.byId("run-picker-name"), run ? `${active.series?.title ?? run.name} \u00b7 ${run.run} \u00b7 started ${ns.absoluteTime(run.started)}` : entries.length ? "" : "No run of that name");
  }

  function ask() {
    if (!isOpen() || document.hidden) return;
    const seen = inView().flatMap(({ run, series }) => series?.models ?? (run ? [run] : []));
    const runs = [...new Set(seen.map(({ run }) => run))].slice(0, MOST_ASKED);
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
    while (entries[to] && !isChoice(entries[to])) to += direction;
    if (!entries[to]) to = entries.findIndex(isChoice);
    at = to;
    const entry = entries[at];
    if (entry) {
      const { scrollTop, clientHeight } = list();
      if (entry.top < scrollTop) list().scrollTop = entry.top - (at > 0 && !isChoice(entries[at - 1]) ? HEAD_PX : 0);
      else if (entry.top + ROW_PX > scrollTop + clientHeight) list().scrollTop = entry.top + ROW_PX - clientHeight;
    }
    draw();
    askSoon();
  }

  function refresh() {
    if (!isOpen()) return;
    const active = entries[at] && keyOf(entries[at]);
    arrange();
    ns.byId("run-picker-rows").style.height = height + "px";
    const same = entries.findIndex((entry) => keyOf(entry) === active);
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
    const isShown = ({ run }) => run === ns.view.run;
    const shown = entries.findIndex(({ run }) => run && isShown(run));
    mark(shown >= 0 ? shown : Math.max(0, entries.findIndex(({ series }) => series?.models.some(isShown))));
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

  // From a model, too, to the left: the row of its series is the active one then.
  function fold(entry, isUnfolded) {
    const key = entry?.series?.run ?? entry?.run?.series;
    if (!key || field.value.trim() || unfolded.has(key) === isUnfolded) return;
    if (isUnfolded) unfolded.add(key);
    else unfolded.delete(key);
    arrange();
    mark(Math.max(0, entries.findIndex(({ series }) => series?.run === key)));
  }

  const enter = (entry) => (entry?.series ? fold(entry, entry.isFolded) : choose(entry?.run?.run));

  const PAGE = 8;
  const MOVES = {
    ArrowDown: () => mark(at + 1),
    ArrowUp: () => mark(at - 1, -1),
    PageDown: () => mark(at + PAGE),
    PageUp: () => mark(at - PAGE, -1),
    Enter: (event) => (event.shiftKey ? tick(entries[at]?.run?.run) : enter(entries[at])),
    ArrowRight: () => fold(entries[at], true),
    ArrowLeft: () => fold(entries[at], false),
    Escape: () => close(),
  };

  const SIDES = ["ArrowLeft", "ArrowRight"];

  function press(event) {
    if (!(event.key in MOVES) || event.isComposing || (event.key === "Enter" && event.target.type === "checkbox")) return;
    // In a text that is typed they go through its letters.
    if (SIDES.includes(event.key) && field.value) return;
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
    field.addEventListener("input", () => {
      arrange();
      list().scrollTop = 0;
      mark(field.value.trim() ? entries.findIndex(({ run }) => run) : 0);
    });
  }

  ns.refreshRunPicker = refresh;
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
      const key = target.closest("[data-run]")?.dataset.run, entry = entries.find((one) => keyOf(one) === key);
      if (entry?.run && target.closest(".ns-picker-tick")) tick(entry.run.run);
      else enter(entry);
    });
    const leave = (target) => target?.closest(".ns-run") || close(true);
    document.addEventListener("pointerdown", ({ target }) => leave(target), true);
    panel().addEventListener("focusout", ({ relatedTarget }) => relatedTarget && leave(relatedTarget));
    ns.on("view", () => ns.later(draw));
    window.setInterval(() => { ask(); draw(); }, EVERY_MS);
  };
})(window.nanscope);
