// The palette (Ctrl-K): runs, views, events, layers and actions by a few letters of their names. All of it is what the
// page has already; names are text.
(function (ns) {
  "use strict";

  const MOST = 50; // entries that are listed
  const GROUPS = ["action", "view", "saved", "run", "event", "layer"]; // order while nothing is typed
  const field = ns.make("input", "ns-palette-field");
  /** @type {PaletteEntry[]} */
  let entries = [];
  /** @type {PaletteEntry[]} */
  let found = [];
  let at = 0;

  const press = (id) => ns.byId(id).click();
  const MENU = ["export-html", "export-png", "export-json", "export-csv", "export-parquet", "export-track", "copy-link", "save-view", "open-keys", "notify", "editor", "theme-dark", "theme-light", "theme-system"];

  const PLAIN = ["This view", "Settings"]; // groups whose entries say it all

  function actions() {
    /** @type {[string, () => void][]} */
    const own = [
      [ns.view.paused ? "Follow the newest step" : "Hold the charts still", ns.togglePause],
      ["Show the whole range again", ns.reset || ns.resume],
      ["Full screen", ns.toggleFullScreen],
      ["Values as a table", ns.openValues],
      ["Next event", () => ns.moveEvent(1)],
      ["Previous event", () => ns.moveEvent(-1)],
      ["Write a note", ns.addNote],
    ];
    const ofMenu = MENU.map(/** @returns {[string, () => void]} */ (id) => {
      const item = ns.byId(id);
      const title = item.parentElement.getAttribute("aria-label");
      const text = id === "open-keys" ? "Keys" : item.textContent;
      return [PLAIN.includes(title) ? text : `${title}: ${text}`, () => press(id)];
    });
    return [...own, ...ofMenu].map(([name, run]) => ({ kind: "action", name, run }));
  }

  function views() {
    const tabs = [...ns.byId("tab-bar").children].filter((tab) => !tab.hidden);
    return tabs.map((tab) => ({
      kind: "view", name: tab.firstChild.textContent, run: () => ns.chooseTab(tab.dataset.tab),
    }));
  }

  function runs() {
    return (ns.runs || []).map((run) => ({
      kind: "run", name: run.name, detail: run.run, run: () => ns.chooseRun(run.run, true),
    }));
  }

  const saved = () => ns.savedViews().map((view) => ({ kind: "saved", name: view.name, run: () => ns.openSaved(view) }));

  function events() {
    return (ns.rowsInOrder() || []).map((row) => ({
      kind: "event", name: row.message, detail: `step ${ns.count(row.step)}`, run: () => ns.openEvent(row.id),
    }));
  }

  const layers = () => ns.heatmap.rows.map((name) => ({ kind: "layer", name: name || "(root)", run: () => ns.openRow(name) }));

  // How well the letters stand in the name, in their order; -1 where they do not. Letters side by side and beginnings
  // of words count, and short names before long ones.
  ns.fuzzyScore = function (letters, name) {
    const wanted = letters.toLowerCase().replace(/\s+/g, ""), text = name.toLowerCase();
    const whole = text.indexOf(letters.trim().toLowerCase());
    if (whole >= 0 && wanted) {
      const isStart = whole === 0 || /[^\p{L}\p{N}]/u.test(text[whole - 1]);
      return 100 * wanted.length + (isStart ? 50 : 0) - Math.min(40, text.length / 8);
    }
    let score = 0, from = 0, last = -2;
    for (const letter of wanted) {
      const place = text.indexOf(letter, from);
      if (place < 0) return -1;
      const isStart = place === 0 || /[^\p{L}\p{N}]/u.test(text[place - 1]);
      score += place === last + 1 ? 8 : isStart ? 6 : 1;
      last = place;
      from = place + 1;
    }
    return score - Math.min(0.9, text.length / 5000);
  };

  function search(letters) {
    if (!letters.trim()) return entries.slice(0, MOST);
    /** @type {[number, PaletteEntry][]} */
    const scored = [];
    for (const entry of entries) {
      const score = Math.max(ns.fuzzyScore(letters, entry.name), ns.fuzzyScore(letters, `${entry.kind} ${entry.name}`) - 1);
      if (score > 0) scored.push([score, entry]);
    }
    return scored.sort((a, b) => b[0] - a[0]).slice(0, MOST).map(([, entry]) => entry);
  }

  /** @param {PaletteEntry} entry @param {number} number */
  function option(entry, number) {
    const item = ns.make("li", "ns-palette-option");
    item.id = `palette-option-${number}`;
    item.setAttribute("role", "option");
    item.append(ns.make("span", "ns-palette-kind", entry.kind), ns.make("span", "ns-palette-name", entry.name.slice(0, 300)));
    if (entry.detail) item.append(ns.make("span", "ns-small", entry.detail));
    return item;
  }

  function mark(next) {
    const options = ns.byId("palette-list").children;
    at = found.length ? (next + found.length) % found.length : 0;
    [...options].forEach((each, number) => ns.setAttribute(each, "aria-selected", String(number === at)));
    ns.setAttribute(field, "aria-activedescendant", found.length ? options[at].id : "");
    options[at]?.scrollIntoView({ block: "nearest" });
  }

  function draw() {
    found = search(field.value);
    ns.byId("palette-list").replaceChildren(...found.map(option));
    const more = found.length === MOST ? `the first ${MOST}` : String(found.length);
    ns.setText(ns.byId("palette-count"), found.length ? `${more} of ${ns.count(entries.length)}` : "nothing of that name");
    mark(0);
  }

  function choose() {
    const entry = found[at];
    if (!entry) return;
    ns.byId("palette").close();
    entry.run();
  }

  ns.openPalette = function () {
    entries = [...actions(), ...views(), ...saved(), ...runs(), ...events(), ...layers()];
    entries.sort((a, b) => GROUPS.indexOf(a.kind) - GROUPS.indexOf(b.kind));
    field.value = "";
    ns.byId("palette").showModal();
    field.focus();
    draw();
  };

  // Made here: Dash's own inputs take no roles.
  function makeField() {
    Object.assign(field, { type: "text", autocomplete: "off", spellcheck: false, maxLength: 200, autofocus: true });
    const says = "Run, view, event, layer or action";
    const attributes = {
      role: "combobox", "aria-expanded": "true", "aria-controls": "palette-list", "aria-autocomplete": "list",
      "aria-label": says, placeholder: says,
    };
    for (const [name, value] of Object.entries(attributes)) ns.setAttribute(field, name, value);
    ns.byId("palette-head").append(field);
  }

  /** @type {Record<string, () => void>} */
  const MOVES = {
    ArrowDown: () => mark(at + 1),
    ArrowUp: () => mark(at - 1),
    PageDown: () => mark(Math.min(at + 10, found.length - 1)),
    PageUp: () => mark(Math.max(at - 10, 0)),
    Enter: choose,
  };

  ns.startPalette = function () {
    const dialog = ns.byId("palette");
    makeField();
    field.addEventListener("input", draw);
    dialog.addEventListener("keydown", (event) => {
      if (!(event.key in MOVES) || event.isComposing) return;
      event.preventDefault();
      MOVES[event.key]();
    });
    dialog.addEventListener("click", (event) => {
      const item = event.target.closest("[role=option]");
      if (item) at = [...item.parentElement.children].indexOf(item);
      if (item) choose();
      else if (event.target === dialog) dialog.close(); // beside it
    });
    document.addEventListener("keydown", (event) => {
      const isAsked = event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey;
      if (!isAsked) return;
      event.preventDefault();
      if (dialog.open) dialog.close();
      else if (!document.querySelector("dialog[open]")) ns.openPalette();
    }, true);
  };
})(window.nanscope);
