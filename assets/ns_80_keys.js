// Keyboard: Space live or pause, 0 whole range, n and p next and previous event, Escape closes a panel, ? lists
// the keys (dashboard/views/key_sheet.py).
(function (ns) {
  "use strict";

  const KEYS = {
    " ": () => ns.togglePause(),
    0: () => ns.reset(),
    n: () => ns.moveEvent(1),
    p: () => ns.moveEvent(-1),
    w: () => ns.zoomBy(2),
    s: () => ns.zoomBy(1 / 2),
    a: () => ns.pan(-0.25),
    d: () => ns.pan(0.25),
    e: () => ns.lines.smooth(),
    l: () => ns.lines.log(),
    c: () => ns.lines.clip(),
    "?": () => ns.byId("key-sheet").showModal(),
    Escape: () => { ns.closeEvent(); ns.closeRow(); },
  };

  // Keys belong to whatever takes text or, for Space, can be pressed.
  function isTaken(event) {
    const target = event.target;
    if (ns.byId("key-sheet").open) return true;
    if (event.ctrlKey || event.metaKey || event.altKey) return true;
    if (target.closest("input:not([type=radio]), textarea, select, [contenteditable=true]")) return true;
    if (target.closest("[role=combobox], [role=listbox], [role=menu], [aria-haspopup][aria-expanded=true]")) return true;
    if (event.key === " " && target.closest("input")) return true;
    return event.key === " " && target.closest("button, a, summary, [role=button], [role=radio], [role=grid]") !== null;
  }

  ns.startKeys = function () {
    document.addEventListener("keydown", (event) => {
      if (!(event.key in KEYS) || isTaken(event)) return;
      event.preventDefault();
      KEYS[event.key]();
    });
    ns.byId("key-sheet-close").addEventListener("click", () => ns.byId("key-sheet").close());
    ns.byId("live-button").addEventListener("click", ns.togglePause);
    ns.byId("reset-button").addEventListener("click", ns.reset);
  };
})(window.nanscope);
