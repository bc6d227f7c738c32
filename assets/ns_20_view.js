// What the user wants to see: run, rank, tab, event or row, range, live or paused, unfolded layers, statistic of the
// heatmap. All of it is in the address, so that a link or a reload shows the same again; Back and Forward go through
// tabs, runs and events.
(function (ns) {
  "use strict";

  const DEFAULT_HEATMAP = "grad_norm";
  const DEFAULT_RANKS = "grad_norm"; // as in dashboard/page/views/rank_statistics.py
  const DEFAULT_TAB = "overview";
  const LONGEST_RUN = 64; // of ids of events, too; as in dashboard/live/view.py
  const LONGEST_SNAPSHOT = 600; // as in dashboard/page/callbacks/memory.py
  const MOST_RANKS = 2 ** 31;
  ns.MOST_COMPARED = 5; // as in dashboard/page/views/runs_section.py
  const VISITED = ["run", "tab", "event", "row", "snapshots"]; // a change of these is a step that Back takes back

  /** @type {View} */
  const view = {
    run: null,
    rank: 0,
    tab: DEFAULT_TAB,
    event: null,
    row: null, // parameter, layer or module in the panel; "" is the root. Never with an event
    wide: false, // the row's panel is over the whole page
    first: null, // steps [first, end) after a zoom; null while the whole range is shown
    end: null,
    window: null, // live: only the newest so many steps
    paused: false,
    unfolded: [],
    heatmap: DEFAULT_HEATMAP, // statistic
    smooth: 0, // weight of a line's past, 0 to 0.99
    log: false, // log scales wherever all values are positive
    clip: false, // scales without outliers
    x: "", // the x-axis: "" is steps, "clock", "relative" to the run's start
    muted: [], // kinds and severities that the list of events leaves out
    newestFirst: false,
    filter: "", // Layers: pattern of the rows to show
    sort: "", // Layers: "" is the model's order, see SORTS in ns_53_layers_lines.js
    scale: "", // Layers: "" is absolute, see SCALES in ns_54_layers_scales.js
    folded: [], // Layers: groups that are folded; after "*" those that are not
    pinnedRows: [], // Layers: names of the rows that stay at the top, see ns_53_layers_lines.js
    pinned: [], // charts of other views that the overview shows, too
    flow: false, // Layers: as gradient flow, values over depth (ns_58_flow.js)
    at: null, // step that it shows; null is the newest
    logged: false, // the section of the user's own series is open
    ranks: DEFAULT_RANKS, // statistic that the view Ranks compares
    rankOrder: "", // of its rows: "" is by host, see ORDERS in ns_57_ranks.js
    snapshots: [], // Memory: ids of the two that are compared; [] are the oldest and the newest
    compared: [], // ids of the runs that are ticked in the table of runs
    find: "", // what is searched for there
    isOwnChoice: false, // the user named the run, so a newer one does not replace it
  };
  ns.view = view;
  ns.range = null; // steps on screen, [first, end)
  ns.newestStep = null;

  const whole = (text, most) => (/^\d{1,15}$/.test(text || "") && Number(text) < most ? Number(text) : null);

  // An address may say anything: what cannot be is as if it were not there.
  function readAddress() {
    const query = new URLSearchParams(window.location.search);
    const run = query.get("run");
    const [first, end] = (query.get("steps") || "").split("-").map((text) => whole(text, 2 ** 53));
    const isRange = Number.isInteger(first) && Number.isInteger(end) && end > first;
    const window_ = whole(query.get("newest"), 2 ** 53);
    if (run !== view.run) ns.range = null;
    Object.assign(view, {
      run: run === null ? null : run.slice(0, LONGEST_RUN),
      isOwnChoice: run !== null,
      rank: whole(query.get("rank"), MOST_RANKS) ?? 0,
      tab: query.get("tab") || DEFAULT_TAB,
      event: query.get("event")?.slice(0, LONGEST_RUN) || null,
      row: query.has("event") ? null : query.get("row"),
      wide: query.get("wide") === "1" && query.has("row"),
      flow: query.get("flow") === "1",
      at: whole(query.get("at"), 2 ** 53),
      heatmap: (query.get("heatmap") || DEFAULT_HEATMAP).slice(0, 64),
      smooth: Math.max(0, Math.min(0.99, Number(query.get("smooth")) || 0)),
      log: query.get("log") === "1",
      clip: query.get("clip") === "1",
      x: ["clock", "relative"].includes(query.get("x")) ? query.get("x") : "",
      muted: query.getAll("mute").slice(0, 64),
      newestFirst: query.get("order") === "newest",
      filter: (query.get("filter") || "").slice(0, 256),
      sort: (query.get("sort") || "").slice(0, 16),
      scale: (query.get("scale") || "").slice(0, 16),
      folded: query.getAll("fold").slice(0, 256),
      pinned: query.getAll("pin").slice(0, 64),
      pinnedRows: query.getAll("pinrow").slice(0, 64),
      logged: query.get("logged") === "1",
      ranks: (query.get("ranks") || DEFAULT_RANKS).slice(0, 64),
      rankOrder: (query.get("rankorder") || "").slice(0, 16),
      first: isRange ? first : null,
      end: isRange ? end : null,
      paused: isRange,
      window: isRange || !window_ ? null : window_,
      unfolded: query.getAll("open").slice(0, 256),
      snapshots: query.getAll("snapshot").slice(0, 2).map((id) => id.slice(0, LONGEST_SNAPSHOT)),
      compared: [...new Set(query.getAll("compare"))].filter((id) => id.length <= LONGEST_RUN).slice(0, ns.MOST_COMPARED),
      find: (query.get("find") || "").slice(0, 200),
    });
    if (isRange) ns.range = [first, end];
  }

  function address() {
    const query = new URLSearchParams();
    if (view.run !== null) query.set("run", view.run);
    if (view.rank) query.set("rank", String(view.rank));
    if (view.tab !== DEFAULT_TAB) query.set("tab", view.tab);
    if (view.event !== null) query.set("event", view.event);
    if (view.row !== null) query.set("row", view.row);
    if (view.wide) query.set("wide", "1");
    if (view.heatmap !== DEFAULT_HEATMAP) query.set("heatmap", view.heatmap);
    if (view.smooth) query.set("smooth", String(view.smooth));
    if (view.log) query.set("log", "1");
    if (view.clip) query.set("clip", "1");
    if (view.x) query.set("x", view.x);
    for (const name of ["filter", "sort", "scale"]) if (view[name]) query.set(name, view[name]);
    for (const path of view.folded) query.append("fold", path);
    for (const row of view.pinnedRows) query.append("pinrow", row);
    for (const chart of view.pinned) query.append("pin", chart);
    if (view.flow) query.set("flow", "1");
    if (view.flow && view.at !== null) query.set("at", String(view.at));
    if (view.logged) query.set("logged", "1");
    if (view.ranks !== DEFAULT_RANKS) query.set("ranks", view.ranks);
    if (view.rankOrder) query.set("rankorder", view.rankOrder);
    if (view.first !== null && view.end !== null) query.set("steps", `${view.first}-${view.end}`);
    if (view.window !== null) query.set("newest", String(view.window));
    for (const name of view.muted) query.append("mute", name);
    if (view.newestFirst) query.set("order", "newest");
    for (const layer of view.unfolded) query.append("open", layer);
    for (const snapshot of view.snapshots) query.append("snapshot", snapshot);
    for (const compared of view.compared) query.append("compare", compared);
    if (view.find) query.set("find", view.find);
    return window.location.pathname + (query.size ? "?" + query : "");
  }

  // Browsers slow a page down that writes its address at every frame of a pan. All else is written at once: what a
  // reload takes is the address as it stood before it, whatever is written while the page goes.
  const MOVING = ["first", "end", "at", "smooth"];
  const ADDRESS_MS = 100;
  let writing = 0, written = -Infinity;
  function write(how) {
    window.clearTimeout(writing);
    writing = 0;
    written = performance.now();
    const text = address();
    if (text !== window.location.pathname + window.location.search) window.history[how](null, "", text);
  }
  function writeAddress(isVisited, isMoving) {
    if (isVisited) write("pushState");
    else if (!isMoving || performance.now() - written > ADDRESS_MS) write("replaceState");
    else if (!writing) writing = window.setTimeout(write, ADDRESS_MS, "replaceState");
  }
  ns.writeMoving = () => writeAddress(false, true);
  ns.flushAddress = () => { if (writing) write("replaceState"); };

  ns.address = function () {
    ns.flushAddress();
    return window.location.href;
  };

  // Changes some fields and tells everyone. What the page does by itself is no step for Back.
  ns.change = function (patch, isByUser = true) {
    const isVisited = isByUser && VISITED.some((name) => name in patch && patch[name] !== view[name]);
    if (isVisited) ns.flushAddress(); // the step that Back returns to
    // Snapshots are of one process: another rank has others.
    const isOther = "rank" in patch && patch.rank !== view.rank;
    const isMoving = Object.keys(patch).every((name) => MOVING.includes(name) || patch[name] === view[name]);
    Object.assign(view, isOther ? { snapshots: [] } : {}, patch);
    writeAddress(isVisited, isMoving);
    ns.emit("view", view);
  };

  ns.chooseRun = function (run, isOwnChoice, also = {}) {
    if (run === view.run) return;
    ns.range = null;
    const fresh = { rank: 0, event: null, row: null, wide: false, at: null, first: null, end: null, paused: false, unfolded: [], snapshots: [] };
    ns.change({ run, isOwnChoice, ...fresh, ...also }, isOwnChoice);
  };

  ns.pause = function () {
    if (view.paused || !ns.range) return;
    ns.change({ paused: true, first: ns.range[0], end: ns.range[1] });
  };
  ns.resume = () => ns.change({ paused: false, first: null, end: null });
  ns.reset = () => ns.change({ paused: false, first: null, end: null, window: null });
  ns.togglePause = () => (view.paused ? ns.resume() : ns.pause());

  ns.setRange = function (range) {
    if (!range || range[0] === null || range[1] === null) return;
    const isSame = ns.range && ns.range[0] === range[0] && ns.range[1] === range[1];
    ns.range = range;
    if (!isSame) ns.emit("range", range);
  };

  // The layer that a parameter of this name is in.
  ns.layerOf = (name) => name.slice(0, Math.max(0, name.lastIndexOf(".")));

  // Layers whose parameters the page asks for: in the view Layers also those in which a parameter is pinned.
  ns.askedLayers = function () {
    const pinned = view.tab === "layers" ? view.pinnedRows.map(ns.layerOf) : [];
    return [...new Set([...view.unfolded, ...pinned])].slice(0, 256);
  };

  ns.toggleUnfolded = function (layer) {
    const isOpen = view.unfolded.includes(layer);
    const unfolded = isOpen ? view.unfolded.filter((name) => name !== layer) : [...view.unfolded, layer];
    ns.change({ unfolded });
  };

  // Goes to another address of the page; Back goes to the one before.
  ns.visit = function (query, isOwnChoice) {
    const text = window.location.pathname + (String(query) ? `?${query}` : "");
    if (text !== window.location.pathname + window.location.search) window.history.pushState(null, "", text);
    readAddress();
    view.isOwnChoice = isOwnChoice;
    ns.emit("view", view);
  };

  ns.startView = function () {
    readAddress();
    window.addEventListener("popstate", () => {
      window.clearTimeout(writing);
      writing = 0;
      readAddress();
      ns.emit("view", view);
    });
  };
})(window.nanscope);
