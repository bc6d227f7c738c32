// The panel of one parameter, layer or module beside the charts: opening, closing, choosing another one. Figure,
// texts and names come from Dash callbacks (dashboard/callbacks/rows.py); asked for again when new ones arrive.
(function (ns) {
  "use strict";

  const ROOT = "(root)"; // as in dashboard/callbacks/rows.py
  const CONFIG = { displayModeBar: false, showTips: false };
  let mark = null; // changes with every new histogram; null while the run has none
  let figure = null;
  let asked = "", askedNames = "", names = 0;
  let opener = null; // gets the focus back

  ns.hasHistograms = () => mark !== null;

  ns.openRow = function (name) {
    if (name === ns.view.row) return;
    if (ns.view.row === null) opener = document.activeElement;
    ns.change({ row: name, event: null });
  };
  ns.closeRow = function () {
    if (ns.view.row === null) return;
    ns.change({ row: null });
    if (opener && opener.isConnected) opener.focus({ preventScroll: true });
  };
  ns.chooseRow = (name) => ns.openRow(name === ROOT ? "" : name);

  function ask() {
    const { run, rank, row, first, end } = ns.view;
    if (run === null || row === null) return;
    const key = [run, rank, row, ns.themeName, first, end, mark].join("|");
    if (key === asked) return;
    asked = key;
    ns.setProps("row-scope", { data: { run, rank, row, theme: ns.themeName, first, end, mark: mark || 0 } });
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

  function drawFigure() {
    const element = ns.plot("row");
    element.hidden = !figure || !figure.data;
    if (element.hidden || ns.view.row === null || !element.clientWidth) return;
    if (!window.Plotly) return void ns.plotly().then(() => ns.later(drawFigure));
    element.style.height = figure.layout.height + "px";
    window.Plotly.react(element, figure.data, { ...figure.layout, autosize: true }, CONFIG);
  }

  ns.takeRow = function (value) {
    figure = value;
    ns.later(drawFigure);
  };

  function drawPanel() {
    const { row } = ns.view;
    const isOpen = row !== null;
    const wasOpen = !ns.byId("row-aside").hidden;
    ns.byId("row-aside").hidden = !isOpen;
    document.body.classList.toggle("ns-row-open", isOpen);
    if (!isOpen) {
      askedNames = "";
      return;
    }
    askNames();
    ask();
    ns.give("row-select", row || ROOT);
    if (!wasOpen) ns.later(drawFigure);
  }

  ns.startRows = function () {
    ns.byId("row-close").addEventListener("click", ns.closeRow);
    ns.byId("row-open").addEventListener("click", () => {
      const { rows, shown } = ns.heatmap;
      ns.openRow(rows[shown[0]] ?? "");
    });
    ns.on("message", (header) => {
      if (header.run === null || header.run !== ns.view.run || header.histograms === mark) return;
      mark = header.histograms;
      ns.byId("row-open").hidden = mark === null;
      if (ns.view.row !== null) drawPanel();
    });
    ns.on("view", drawPanel);
    ns.on("theme", ask);
    new ResizeObserver(() => {
      const element = ns.plot("row");
      if (element.data && element.clientWidth) window.Plotly.Plots.resize(element);
    }).observe(ns.byId("row-aside"));
    drawPanel();
  };
})(window.nanscope);
