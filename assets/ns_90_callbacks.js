// Start of the page, theme, and the functions that Dash calls (dashboard/callbacks/page.py). They return
// nothing to Dash: `no_update`.
(function (ns) {
  "use strict";

  const THEME_KEY = "nanscope-theme";
  const systemDark = window.matchMedia("(prefers-color-scheme: dark)");

  function remembered() {
    // Private windows may refuse storage; then the system decides.
    try {
      return window.localStorage.getItem(THEME_KEY) || "system";
    } catch {
      return "system";
    }
  }

  function applyTheme() {
    const choice = remembered();
    ns.themeName = choice === "system" ? (systemDark.matches ? "dark" : "light") : choice;
    ns.setProps("provider", { forceColorScheme: ns.themeName });
    document.documentElement.dataset.theme = ns.themeName;
    for (const name of ["dark", "light", "system"]) {
      ns.setAttribute(ns.byId("theme-" + name), "aria-checked", String(name === choice));
    }
    ns.emit("theme", ns.themeName);
  }

  function chooseTheme(name) {
    try {
      window.localStorage.setItem(THEME_KEY, name);
    } finally {
      applyTheme();
    }
  }

  /** @param {Templates} templates */
  function start(templates) {
    if (ns.templates || !templates) return;
    ns.templates = templates;
    ns.fillParts();
    ns.startView();
    ns.startTabs();
    ns.startAxis();
    ns.startPlots();
    ns.startNewest();
    ns.startGutters();
    ns.startLogged();
    ns.startLines();
    ns.startPins();
    ns.startStrip();
    ns.startCrosshair();
    ns.startPointer();
    ns.startOrigin();
    ns.startHeatmap();
    ns.startHeatmapRows();
    ns.startHeatmapHover();
    ns.startLayers();
    ns.startRanks();
    ns.startFlow();
    ns.startStatus();
    ns.startRunPicker();
    ns.startVerdict();
    ns.startEventList();
    ns.startDensity();
    ns.startTable();
    ns.startEvents();
    ns.startTimeline();
    ns.startTensorTracks();
    ns.startTensorHistograms();
    ns.startRows();
    ns.startDocuments();
    ns.startMemory();
    ns.startIcicle();
    ns.startSystem();
    ns.startActions();
    ns.startRunActions();
    ns.startOverlay();
    ns.startRunsChart();
    ns.startRuns();
    ns.startMenu();
    ns.startExport();
    ns.startKeys();
    ns.startPalette();
    ns.startValues();
    ns.startToast();
    ns.startNotify();
    ns.startNotes();
    ns.startSavedViews();
    ns.startEditor();
    systemDark.addEventListener("change", applyTheme);
    applyTheme();
    ns.startSocket();
  }

  // Wraps a function so that Dash gets no value back, and only real choices reach it.
  function quiet(call) {
    return function (value) {
      if (value !== undefined && value !== null && value !== 0) call(value);
      return window.dash_clientside.no_update;
    };
  }

  // The same for a select: what a script has given it is no choice of the user's.
  const picked = (id, call) => quiet((value) => ns.isPicked(id, value) && call(value));

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    nanscope: {
      start: quiet(start),
      takePickerRows: quiet((rows) => ns.takePickerRows(rows)),
      chooseRank: picked("rank-select", (rank) => ns.change({ rank: Number(rank) }, true)),
      takeRows: quiet(ns.takeRows),
      takeRow: quiet((shown) => ns.takeRow(shown)),
      takeRowTracks: quiet((shown) => ns.takeRowTracks(shown)),
      takeModuleTimes: quiet((shown) => ns.takeModuleTimes(shown)),
      chooseRow: picked("row-select", (row) => ns.chooseRow(row)),
      takeRuns: quiet((rows) => ns.takeRunRows(rows)),
      runsSaid: quiet((said) => ns.takeRunSaid(said)),
      drawOverlay: quiet((figure) => ns.drawOverlay(figure)),
      exportHtml: quiet(() => ns.exportAs("html")),
      exportPng: quiet(() => ns.exportPng()),
      exportJson: quiet(() => ns.exportAs("json")),
      exportCsv: quiet(() => ns.exportAs("csv")),
      exportParquet: quiet(() => ns.exportAs("parquet")),
      exportTrack: quiet(() => ns.openExport()),
      copyLink: quiet(() => ns.copy(ns.address(), ns.byId("page-menu"))),
      openKeys: quiet(ns.openKeys),
      themeDark: quiet(() => chooseTheme("dark")),
      themeLight: quiet(() => chooseTheme("light")),
      themeSystem: quiet(() => chooseTheme("system")),
    },
  });
})(window.nanscope);
