// A toast for critical events that come while the page is open: one for all of them at a time, at most one in five
// seconds; a click opens the first. The verdict line reads them out, so this is no live region.
(function (ns) {
  "use strict";

  const LEAST_MS = 5000; // between two toasts
  const SHOWN_MS = 10000;
  /** @type {Set<string> | null} */
  let known = null; // ids of the run's critical events; null until all that there were are here
  /** @type {EventRow[]} */
  let waiting = []; // rows that no toast has named
  let shownAt = -Infinity;
  let timer = 0, hiding = 0;
  let first = null; // id that a click opens
  let isAlone = false; // the toast tells of no other

  const hide = () => { ns.byId("toast").hidden = true; };

  function hideLater() {
    window.clearTimeout(hiding);
    hiding = window.setTimeout(() => (document.hidden || ns.byId("toast").matches(":hover, :focus-within") ? hideLater() : hide()), SHOWN_MS);
  }

  function show() {
    timer = 0;
    if (!waiting.length) return;
    const [row] = waiting;
    const more = waiting.length > 1 ? ` (and ${ns.count(waiting.length - 1)} more)` : "";
    first = row.id;
    isAlone = waiting.length === 1;
    ns.setText(ns.byId("toast-text"), row.message);
    ns.setText(ns.byId("toast-more"), more);
    ns.byId("toast").hidden = false;
    ns.notify(row, waiting.length);
    waiting = [];
    shownAt = performance.now();
    hideLater();
  }

  function take() {
    const rows = ns.rowsInOrder();
    if (!rows) return;
    const critical = rows.filter((row) => row.severity_order === 0);
    if (known !== null) waiting.push(...critical.filter((row) => !known.has(row.id) && row.id !== ns.view.event));
    known = new Set(critical.map((row) => row.id));
    if (waiting.length && !timer) timer = window.setTimeout(show, Math.max(0, shownAt + LEAST_MS - performance.now()));
  }

  ns.startToast = function () {
    let { run } = ns.view;
    ns.on("rows", take);
    ns.on("view", (view) => {
      if (isAlone && view.event === first) hide(); // it is open: nothing is left to tell
      if (view.run === run) return;
      run = view.run;
      known = null;
      waiting = [];
      hide();
    });
    ns.byId("toast-open").addEventListener("click", () => { hide(); ns.openEvent(first); });
    ns.byId("toast-close").addEventListener("click", hide);
  };
})(window.nanscope);
