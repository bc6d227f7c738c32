// The panel of one tensor (a parameter, layer or module) beside the charts or over the whole page: opening, closing,
// choosing another one. Histograms, statistics, texts and names come from Dash callbacks
// (dashboard/page/callbacks/rows.py); asked for again when there are new ones.
(function (ns) {
  "use strict";

  const ROOT = "(root)"; // as in dashboard/page/callbacks/rows.py
  const REFRESH_MS = 2000; // of the statistics, while steps arrive
  let mark = null; // changes with every new histogram; null while the run has none
  let newest = null;
  let asked = "", askedNames = "", names = 0;
  let askedTracks = "", tracksAt = -Infinity, timer = 0;
  let watched = null; // row whose condition stands in the field
  let opener = null; // gets the focus back

  ns.canOpenRow = () => ns.view.run !== null && ns.heatmap.rows.length > 0;
  // By this name the heatmap's hover asks whether a click opens a row.
  ns.hasHistograms = ns.canOpenRow;

  ns.openRow = function (name) {
    if (name === ns.view.row) return;
    if (ns.view.row === null) opener = document.activeElement;
    ns.change({ row: name, event: null });
  };
  ns.closeRow = function () {
    if (ns.view.row === null) return;
    ns.change({ row: null, wide: false });
    if (opener && opener.isConnected) opener.focus({ preventScroll: true });
  };
  ns.chooseRow = (name) => ns.openRow(name === ROOT ? "" : name);
  ns.toggleWide = () => ns.change({ wide: !ns.view.wide });

  // The steps in view; open-ended where the newest belong to them.
  function steps() {
    const { first, end, window } = ns.view;
    if (window === null || newest === null) return { first, end };
    return { first: Math.max(0, newest + 1 - window), end: null };
  }

  function ask() {
    const { run, rank, row, window, first, end } = ns.view;
    if (run === null || row === null) return;
    const key = [run, rank, row, window, first, end, mark].join("|");
    if (key === asked) return;
    asked = key;
    ns.setProps("row-scope", { data: { run, rank, row, ...steps(), mark: mark || 0 } });
  }

  // Statistics change with every step: a new row at once, new steps every other second.
  function askTracks() {
    timer = 0;
    const { run, rank, row, window, first, end, paused } = ns.view;
    if (run === null || row === null) return;
    const wish = [run, rank, row, window, first, end].join("|");
    const key = wish + (paused ? "" : "|" + newest);
    if (key === askedTracks) return;
    const wait = askedTracks.startsWith(wish) ? tracksAt + REFRESH_MS - performance.now() : 0;
    if (wait > 0) {
      timer = setTimeout(askTracks, wait);
      return;
    }
    askedTracks = key;
    tracksAt = performance.now();
    ns.setProps("row-tracks-scope", { data: { run, rank, row, ...steps(), mark: newest ?? 0 } });
  }

  // All names of a model are many: asked for when the panel opens, not with every step.
  function askNames() {
    const { run, rank } = ns.view;
    const key = [run, rank, mark !== null].join("|");
    if (run === null || key === askedNames) return;
    askedNames = key;
    names += 1;
    ns.setProps("row-names", { data: { run, rank, mark: names } });
  }

  // Answers to an older wish are not drawn.
  const isOfView = ({ run, rank, row }) => run === ns.view.run && rank === ns.view.rank && row === ns.view.row;
  ns.takeRow = function (shown) {
    if (!isOfView(shown)) return;
    if (watched !== shown.row) {
      watched = shown.row;
      ns.setProps("row-condition", { value: shown.watch, error: "" });
      ns.setProps("row-watch-said", { children: "" });
    }
    ns.showHistograms(shown.kinds);
  };
  ns.takeRowTracks = (shown) => isOfView(shown) && ns.showTensorTracks(shown);

  let shownOf = "";

  function drawPanel() {
    const { run, rank, row, wide } = ns.view;
    const isOpen = row !== null;
    ns.byId("row-aside").hidden = !isOpen;
    document.body.classList.toggle("ns-row-open", isOpen);
    document.body.classList.toggle("ns-row-wide", isOpen && wide);
    ns.setAttribute(ns.byId("row-wide"), "aria-pressed", String(wide));
    const of = isOpen ? [run, rank, row].join("|") : "";
    if (of !== shownOf) {
      shownOf = of;
      asked = askedTracks = "";
      ns.showHistograms([]);
      ns.showTensorTracks({ tracks: [], newest: { columns: [], size: 1, rows: [] } });
    }
    if (!isOpen) {
      askedNames = "";
      watched = null;
      return;
    }
    askNames();
    ask();
    askTracks();
    ns.give("row-select", row || ROOT);
  }

  // The sentence on what is not recorded leads to where the level is chosen.
  function toControls(event) {
    if (!event.target.closest("button")) return;
    ns.change({ tab: "controls", wide: false });
    ns.byId("level-choice").focus();
  }

  ns.startRows = function () {
    ns.byId("row-close").addEventListener("click", ns.closeRow);
    ns.byId("row-wide").addEventListener("click", ns.toggleWide);
    ns.byId("row-absent").addEventListener("click", toControls);
    ns.byId("row-open").addEventListener("click", () => {
      const { rows, shown } = ns.heatmap;
      ns.openRow(rows[shown[0]] ?? "");
    });
    ns.on("message", (header) => {
      if (header.run === null || header.run !== ns.view.run) return;
      newest = header.newestStep;
      const isNew = header.histograms !== mark;
      mark = header.histograms;
      ns.byId("row-open").hidden = mark === null;
      if (ns.view.row === null) return;
      if (isNew) drawPanel();
      else if (!timer) askTracks();
    });
    ns.on("view", drawPanel);
    drawPanel();
  };
})(window.nanscope);
