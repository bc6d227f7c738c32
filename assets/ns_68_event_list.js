// The list of events as it is seen: by cause, what followed folded under what began it, the oldest fault first; with
// search and chips. Only the rows in view are elements. The rows themselves are in ns_69_table.js.
(function (ns) {
  "use strict";

  const ROW_PX = 28; // also in ns_page.css
  const SLACK = 6; // rows drawn beyond either end
  const MOST_KINDS = 12;
  const COLUMNS = ["severity", "step", "message", "line", "kind", "count", "rank", "time"];
  const TITLES = ["Severity", "Step", "Event", "Line", "Kind", "Count", "Rank", "Time"];
  const open = new Set(); // ids of origins that are unfolded
  /** @type {any} */
  let search = null, body = null, rows = null; // elements
  let listed = []; // {row, origin, folded, isOpen} in order
  let focused = null; // id of the row that has the list's one place in the order of the Tab key

  /** @param {EventRow} row */
  const isHidden = (row) => (!row.is_last && ns.view.muted.includes(row.kind)) || ns.view.muted.includes(row.severity.split(" ")[1]);

  /** @param {EventRow} row @param {string[]} words */
  function matches(row, words) {
    const text = `${row.message} ${row.line} ${row.kind} ${row.step}`.toLowerCase();
    return words.every((word) => text.includes(word));
  }

  const byTime = (a, b) => a.is_last - b.is_last || a.step - b.step || a.severity_order - b.severity_order;

  // A search shows what it finds, unfolded; else each fault is one line until somebody opens it.
  function arrange() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const all = ns.eventRows();
    const shown = all.filter((row) => !isHidden(row) && matches(row, words));
    const there = new Set(shown.map((row) => row.id));
    const members = new Map();
    const heads = [];
    for (const row of shown) {
      const origin = ns.causeOf(row.id);
      if (origin && there.has(origin) && !words.length) members.set(origin, [...(members.get(origin) || []), row]);
      else heads.push(row);
    }
    const sign = ns.view.newestFirst ? -1 : 1;
    heads.sort((a, b) => Number(a.is_last) - Number(b.is_last) || sign * (a.step - b.step) || a.severity_order - b.severity_order);
    listed = heads.flatMap((row) => {
      const own = (members.get(row.id) || []).sort(byTime);
      const isOpen = open.has(row.id) || own.some((each) => each.id === ns.view.event);
      const head = { row, origin: null, folded: own.length, isOpen };
      return [head, ...(isOpen ? own.map((each) => ({ row: each, origin: row.id, folded: 0 })) : [])];
    });
    const text = shown.length === all.length ? ns.count(all.length) : `${ns.count(shown.length)} of ${ns.count(all.length)}`;
    ns.setText(ns.byId("events-count"), `${text} event${all.length === 1 ? "" : "s"}`);
    drawChips(all);
    ns.emit("listed", shown);
  }

  function cell(column, entry) {
    const { row } = entry;
    const element = ns.make("div", `ns-cell ns-cell-${column}`);
    element.setAttribute("role", "gridcell");
    const value = row[column];
    if (column !== "message") {
      ns.setText(element, typeof value === "number" ? ns.count(value) : value);
    } else {
      if (entry.folded) {
        const fold = ns.make("button", "ns-fold", `${entry.isOpen ? "\u25be" : "\u25b8"} ${ns.count(entry.folded)} more`);
        fold.tabIndex = -1;
        ns.setTitle(fold, "Consequences");
        fold.onclick = (event) => { event.stopPropagation(); toggle(row.id); };
        element.append(ns.make("span", "ns-cell-text", value), fold);
      } else element.append(ns.make("span", "ns-cell-text", value));
    }
    ns.setTitle(element, String(value));
    return element;
  }

  function line(entry, index) {
    const { row, origin } = entry;
    const element = ns.make("div", "ns-event-row" + (origin ? " ns-consequence" : ""));
    element.setAttribute("role", "row");
    element.setAttribute("aria-rowindex", String(index + 2));
    element.setAttribute("aria-selected", String(row.id === ns.view.event));
    if (entry.folded) element.setAttribute("aria-expanded", String(entry.isOpen));
    element.dataset.event = row.id;
    element.dataset.severity = row.severity_order;
    element.style.top = index * ROW_PX + "px";
    element.tabIndex = row.id === focused ? 0 : -1;
    element.append(...COLUMNS.map((column) => cell(column, entry)));
    return element;
  }

  let drawn = "";

  function draw() {
    if (ns.byId("panel-events").hidden) return;
    if (!listed.some(({ row }) => row.id === focused)) focused = listed.length ? listed[0].row.id : null;
    const first = Math.max(0, Math.floor(body.scrollTop / ROW_PX) - SLACK);
    const end = Math.min(listed.length, Math.ceil((body.scrollTop + body.clientHeight) / ROW_PX) + SLACK);
    const entries = listed.slice(first, end);
    const key = JSON.stringify([first, focused, ns.view.event, entries.map(({ row, folded, isOpen, origin }) => [row.id, row.count, row.message, row.severity, folded, isOpen, origin])]);
    if (key === drawn) return;
    drawn = key;
    const hadFocus = rows.contains(document.activeElement);
    rows.style.height = listed.length * ROW_PX + "px";
    ns.byId("event-table").setAttribute("aria-rowcount", String(listed.length + 1));
    rows.replaceChildren(...entries.map((entry, at) => line(entry, first + at)));
    if (!listed.length) {
      const isEmpty = !ns.eventRows().length, isOneOfMany = ns.runs?.some(({ run, series }) => series && run === ns.view.run);
      const none = isOneOfMany ? "This model has no events so far." : "No events so far.";
      rows.append(ns.make("p", "ns-none", isEmpty ? none : "No event matches the search and filters."));
    }
    if (hadFocus) rows.querySelector("[tabindex='0']")?.focus({ preventScroll: true });
  }

  function refresh() {
    arrange();
    draw();
  }

  // Scrolls to a row, unfolds what it is in, and gives it the list's place in the order of the Tab key.
  ns.showInList = function (id) {
    const origin = ns.causeOf(id);
    if (origin) open.add(origin);
    arrange();
    const at = listed.findIndex(({ row }) => row.id === id);
    if (at < 0) return;
    focused = id;
    body.scrollTop = Math.max(0, at * ROW_PX - body.clientHeight / 2);
    draw();
    rows.querySelector("[tabindex='0']")?.focus({ preventScroll: true });
  };

  function toggle(id) {
    if (!open.delete(id)) open.add(id);
    refresh();
  }

  /** @param {string} name @param {boolean} isPressed */
  function chip(text, count, name, isPressed) {
    const button = ns.make("button", "ns-chip", text + " ");
    button.append(ns.make("span", "ns-chip-count", ns.count(count)));
    button.setAttribute("aria-pressed", String(isPressed));
    button.dataset.kind = name;
    return button;
  }

  let chips = "";

  // How many there are of each, whether shown or not; the kinds of which there are most.
  /** @param {EventRow[]} all */
  function drawChips(all) {
    const count = (of, rows = all) => rows.reduce((found, row) => found.set(of(row), (found.get(of(row)) || 0) + 1), new Map());
    const severities = count((row) => row.severity.split(" ")[1]);
    const kinds = [...count((row) => row.kind)].sort((a, b) => b[1] - a[1]).slice(0, MOST_KINDS);
    const quiet = ns.quietRows();
    const offered = [...count((row) => row.kind, quiet)];
    const key = JSON.stringify([[...severities], kinds, offered, ns.view.muted]);
    if (key === chips) return;
    chips = key;
    for (const button of ns.byId("events-severities").children) {
      const name = button.dataset.severity;
      ns.setAttribute(button, "aria-pressed", String(!ns.view.muted.includes(name)));
      ns.setText(button.querySelector(".ns-chip-count"), ns.count(severities.get(name) || 0));
    }
    const isShown = (kind) => ns.view.muted.includes(kind) === all.some((row) => row.is_last && row.kind === kind);
    const chipOf = (isPressed) => ([kind, number]) => chip(kind, number, kind, isPressed(kind));
    ns.byId("events-kinds").replaceChildren(...kinds.map(chipOf(isShown)), ...offered.map(chipOf(() => false)));
  }

  function mute(name) {
    const { muted } = ns.view;
    ns.change({ muted: muted.includes(name) ? muted.filter((each) => each !== name) : [...muted, name] });
  }

  // Arrows move through the rows, right and left open and close a fault, Enter shows the event.
  /** @param {KeyboardEvent} event */
  function move(event) {
    const at = listed.findIndex(({ row }) => row.id === focused);
    const page = Math.max(1, Math.floor(body.clientHeight / ROW_PX) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key in steps) {
      const next = Math.max(0, Math.min(listed.length - 1, at + steps[event.key]));
      focused = listed[next]?.row.id ?? null;
      const top = next * ROW_PX;
      if (top < body.scrollTop) body.scrollTop = top;
      if (top + ROW_PX > body.scrollTop + body.clientHeight) body.scrollTop = top + ROW_PX - body.clientHeight;
      draw();
    } else if (event.key === "Enter" || event.key === " ") ns.openEvent(focused);
    else if (event.key === "ArrowRight" && listed[at]?.folded && !listed[at].isOpen) toggle(focused);
    else if (event.key === "ArrowLeft" && open.has(listed[at]?.origin ?? focused)) {
      const origin = listed[at].origin ?? focused;
      focused = origin;
      toggle(origin);
    } else return;
    event.preventDefault();
  }

  function head() {
    const row = ns.make("div", "ns-event-head");
    row.setAttribute("role", "row");
    row.append(...TITLES.map((title, index) => {
      const element = ns.make("div", `ns-cell ns-cell-${COLUMNS[index]}`, title === "Step" ? "" : title);
      element.setAttribute("role", "columnheader");
      if (title === "Step") {
        const button = ns.make("button", "ns-link", "Step");
        ns.setTitle(button, "Oldest or newest first");
        button.onclick = () => ns.change({ newestFirst: !ns.view.newestFirst });
        element.append(button);
      }
      return element;
    }));
    return row;
  }

  ns.startEventList = function () {
    search = ns.make("input", "ns-search");
    Object.assign(search, { type: "search", placeholder: "Search events", spellcheck: false, autocomplete: "off" });
    ns.setAttribute(search, "aria-label", "Search events");
    search.addEventListener("input", () => ns.later(refresh));
    ns.byId("events-search").append(search);
    body = ns.make("div", "ns-event-body");
    rows = ns.make("div", "ns-event-rows");
    rows.setAttribute("role", "rowgroup");
    body.append(rows);
    ns.byId("event-table").append(head(), body);
    body.addEventListener("scroll", () => ns.later(draw));
    body.addEventListener("keydown", move);
    rows.addEventListener("click", ({ target }) => {
      const row = target.closest("[data-event]");
      if (!row) return;
      focused = row.dataset.event;
      ns.openEvent(focused);
    });
    for (const holder of ["events-severities", "events-kinds"]) {
      ns.byId(holder).addEventListener("click", ({ target }) => {
        const button = target.closest("button");
        if (button) mute(button.dataset.severity || button.dataset.kind);
      });
    }
    for (const name of ["rows", "view", "tab"]) ns.on(name, () => ns.later(refresh));
    new ResizeObserver(() => ns.later(draw)).observe(body);
  };
})(window.nanscope);
