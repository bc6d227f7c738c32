// Keyboard: Space live or pause, 0 whole range, n and p next and previous event, Escape closes a panel, ? lists
// the keys (dashboard/page/views/key_sheet.py), where a switch turns those of one letter off.
(function (ns) {
  "use strict";

  const STORED = "nanscope-single-keys";
  const ALWAYS = [" ", "Escape"];

  /** @type {Record<string, () => void>} */
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
    "/": () => ns.focusFilter(),
    "?": () => ns.openKeys(),
    t: () => ns.openValues(),
    m: () => ns.addNote(),
    f: () => (ns.view.row === null ? ns.toggleFullScreen() : ns.toggleWide()),
    Escape: () => { ns.closeEvent(); ns.closeRow(); },
  };

  let isOn = true; // those of one letter

  function recall() {
    try {
      return window.localStorage.getItem(STORED) !== "off";
    } catch {
      return true; // private windows may refuse storage
    }
  }

  function turn(on) {
    isOn = on;
    ns.setAttribute(ns.byId("key-switch"), "aria-checked", String(on));
    ns.setText(ns.byId("key-switch-state"), on ? "on" : "off");
  }

  function toggle() {
    turn(!isOn);
    try {
      window.localStorage.setItem(STORED, isOn ? "on" : "off");
    } catch {
      // It holds for this page then.
    }
  }

  // The focus goes to the switch at its foot, and the list is read from its head.
  ns.openKeys = function () {
    const sheet = ns.byId("key-sheet");
    sheet.showModal();
    sheet.scrollTop = 0;
  };

  ns.toggleFullScreen = function () {
    if (document.fullscreenElement) document.exitFullscreen();
    else document.querySelector(".ns-body").requestFullscreen().catch(() => {}); // an embedding page may forbid it
  };

  // Keys belong to whatever takes text or, for Space, can be pressed.
  /** @param {KeyboardEvent} event */
  function isTaken(event) {
    // A field whose dialog has closed keeps the focus until the next frame.
    const from = /** @type {Element} */ (event.target);
    const target = from.checkVisibility() ? from : document.body;
    if (!isOn && !ALWAYS.includes(event.key)) return true;
    if (document.querySelector("dialog[open]")) return true;
    if (event.ctrlKey || event.metaKey || event.altKey) return true;
    if (target.closest("input:not([type=radio]), textarea, select, [contenteditable=true]")) return true;
    if (target.closest("[role=combobox], [role=listbox]:not(#ranks-list), [role=menu], [aria-haspopup][aria-expanded=true]")) return true;
    if (event.key === " " && target.closest("input")) return true;
    return event.key === " " && target.closest("button, a, summary, [role=button], [role=radio], [role=grid], [role=listbox]") !== null;
  }

  ns.startKeys = function () {
    turn(recall());
    document.addEventListener("keydown", (event) => {
      if (!(event.key in KEYS) || isTaken(event)) return;
      event.preventDefault();
      KEYS[event.key]();
    });
    ns.byId("key-switch").addEventListener("click", toggle);
    ns.byId("key-sheet-close").addEventListener("click", () => ns.byId("key-sheet").close());
    ns.byId("live-button").addEventListener("click", ns.togglePause);
    const reset = ns.byId("reset-button");
    reset.addEventListener("click", ns.reset);
    const placeReset = () => { reset.hidden = !ns.view.paused && ns.view.window === null; };
    ns.on("view", placeReset);
    placeReset();
  };
})(window.nanscope);
