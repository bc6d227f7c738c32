// What the user wants to see: run, rank, event or row, range, live or paused, unfolded layers, statistic of the
// heatmap. Also in the address, so that a link or a reload shows the same run and event again.
(function (ns) {
  "use strict";

  const DEFAULT_HEATMAP = "grad_norm";

  const view = {
    run: null,
    rank: 0,
    event: null,
    row: null, // parameter, layer or module in the panel; "" is the root. Never with an event
    first: null, // steps [first, end) after a zoom; null while the whole range is shown
    end: null,
    window: null, // live: only the newest so many steps
    paused: false,
    unfolded: [],
    heatmap: DEFAULT_HEATMAP, // statistic
    logged: false, // the section of the user's own series is open
    isOwnChoice: false, // the user named the run, so a newer one does not replace it
  };
  ns.view = view;
  ns.range = null; // steps on screen, [first, end)
  ns.newestStep = null;

  function readAddress() {
    const query = new URLSearchParams(window.location.search);
    view.run = query.get("run");
    view.isOwnChoice = view.run !== null;
    view.rank = Math.max(0, parseInt(query.get("rank") || "0", 10) || 0);
    view.event = query.get("event");
    view.row = view.event === null ? query.get("row") : null;
    view.heatmap = query.get("heatmap") || DEFAULT_HEATMAP;
    view.logged = query.get("logged") === "1";
  }

  function writeAddress() {
    const query = new URLSearchParams();
    if (view.run !== null) query.set("run", view.run);
    if (view.rank) query.set("rank", String(view.rank));
    if (view.event !== null) query.set("event", view.event);
    if (view.row !== null) query.set("row", view.row);
    if (view.heatmap !== DEFAULT_HEATMAP) query.set("heatmap", view.heatmap);
    if (view.logged) query.set("logged", "1");
    const address = window.location.pathname + (query.size ? "?" + query : "");
    if (address !== window.location.pathname + window.location.search) {
      window.history.replaceState(null, "", address);
    }
  }

  // Changes some fields and tells everyone.
  ns.change = function (patch) {
    Object.assign(view, patch);
    writeAddress();
    ns.emit("view", view);
  };

  ns.chooseRun = function (run, isOwnChoice) {
    if (run === view.run) return;
    ns.range = null;
    ns.change({
      run, isOwnChoice, rank: 0, event: null, row: null, first: null, end: null, paused: false, unfolded: [],
    });
  };

  // A zoom or pan: holds still at these steps.
  ns.zoom = function (low, high) {
    const first = Math.max(0, Math.ceil(low));
    const end = Math.max(first + 2, Math.floor(high) + 1);
    ns.setRange([first, end]);
    ns.change({ first, end, paused: true });
  };

  ns.pause = function () {
    if (view.paused || !ns.range) return;
    ns.change({ paused: true, first: ns.range[0], end: ns.range[1] });
  };
  ns.resume = () => ns.change({ paused: false, first: null, end: null });
  ns.togglePause = () => (view.paused ? ns.resume() : ns.pause());

  ns.setRange = function (range) {
    if (!range || range[0] === null || range[1] === null) return;
    const isSame = ns.range && ns.range[0] === range[0] && ns.range[1] === range[1];
    ns.range = range;
    if (!isSame) ns.emit("range", range);
  };

  ns.toggleUnfolded = function (layer) {
    const isOpen = view.unfolded.includes(layer);
    const unfolded = isOpen ? view.unfolded.filter((name) => name !== layer) : [...view.unfolded, layer];
    ns.change({ unfolded });
  };

  ns.startView = function () {
    readAddress();
    window.addEventListener("popstate", () => { readAddress(); ns.emit("view", view); });
  };
})(window.nanscope);
