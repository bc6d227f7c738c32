// The anomaly timeline and the event panel beside the charts: opening, closing, next and previous. The figure and
// the panel's content come from Dash callbacks (dashboard/callbacks/events.py).
(function (ns) {
  "use strict";

  let figure = null;
  let figureNumber = 0;
  let mark = null; // changes whenever any event does
  let asked = ""; // what was asked of the server last
  let opener = null; // gets the focus back

  // Asks for the timeline. The range has slack, because events arrive before the frame of their step.
  function ask() {
    const { run, event } = ns.view;
    if (run === null || mark === null || !ns.range) return;
    const span = ns.range[1] - ns.range[0];
    const slack = ns.view.paused ? 0 : Math.max(50, span * 0.25);
    // Live, a range that grew a little does not need new clusters of markers.
    const size = ns.view.paused ? ns.range.join() : Math.round(Math.log2(span + 16) * 4);
    const width = Math.max(100, Math.round(ns.plotWidth() / 50) * 50);
    const key = [run, event, ns.themeName, mark, size, width].join("|");
    if (key === asked) return;
    asked = key;
    ns.setProps("events-scope", {
      data: {
        run, rank: null, theme: ns.themeName, event, mark, width,
        first: ns.view.paused ? ns.range[0] : Math.max(0, ns.range[0] - slack), end: Math.ceil(ns.range[1] + slack),
      },
    });
  }

  function drawTimeline() {
    if (figure) ns.draw("timeline", figure.data, ns.withRange(figure.layout), figureNumber);
  }

  ns.takeTimeline = function (value) {
    if (!value) return;
    figure = value;
    figureNumber += 1;
    ns.later(drawTimeline);
  };

  // While rows are still to come nobody can say the how manieth this is.
  function drawPosition() {
    const rows = ns.view.event === null ? null : ns.rowsInOrder();
    const at = rows ? rows.findIndex((row) => row.id === ns.view.event) : -1;
    ns.setText(ns.byId("event-position"), at < 0 ? "" : `${ns.count(at + 1)} of ${ns.count(rows.length)}`);
  }

  ns.openEvent = function (id) {
    if (!id || id === ns.view.event) return;
    if (ns.view.event === null) opener = document.activeElement;
    ns.change({ event: id, row: null });
  };
  ns.closeEvent = function () {
    if (ns.view.event === null) return;
    ns.change({ event: null });
    if (opener && opener.isConnected) opener.focus({ preventScroll: true });
  };

  // direction 1 is the next event by step, -1 the previous one.
  ns.moveEvent = function (direction) {
    const rows = ns.rowsInOrder();
    if (!rows || !rows.length) return;
    const at = rows.findIndex((row) => row.id === ns.view.event);
    const start = direction > 0 ? 0 : rows.length - 1;
    const next = at < 0 ? start : (at + direction + rows.length) % rows.length;
    ns.openEvent(rows[next].id);
  };

  let shown = "";
  let askedEvent = null;

  function drawPanel() {
    const { run, event } = ns.view;
    const content = ns.byId("event-content");
    // A panel that opens must not show the event before.
    if (event !== null && ns.byId("event-aside").hidden && ns.panelShown()?.dataset.event !== event) {
      content.style.visibility = "hidden";
    }
    ns.byId("event-aside").hidden = event === null;
    document.body.classList.toggle("ns-event-open", event !== null);
    const key = [run, event, mark].join("|");
    if (event !== null && run !== null && key !== shown) {
      const panel = ns.panelShown();
      const isThere = panel !== null && panel.dataset.event === event && askedEvent === event;
      askedEvent = event;
      const seen = isThere ? panel.dataset.state : null;
      ns.setProps("selection", { data: { run, event, seen, mark: mark || 0 } });
    }
    shown = key;
    drawPosition();
  }

  function downloadEvent() {
    const query = new URLSearchParams({ run: ns.view.run, event: ns.view.event });
    window.location.assign("/export/event?" + query);
  }

  const ACTIONS = {
    "event-close": () => ns.closeEvent(),
    "aside-close": () => ns.closeEvent(),
    "event-next": () => ns.moveEvent(1),
    "event-previous": () => ns.moveEvent(-1),
    "event-copy-link": (button) => ns.copy(window.location.href, button),
    "event-download": downloadEvent,
  };

  ns.startEvents = function () {
    ns.startPanel();
    document.addEventListener("click", (click) => {
      const button = click.target.closest("button");
      if (!button) return;
      if (button.id in ACTIONS) ACTIONS[button.id](button);
    });
    ns.on("first-draw", (id) => {
      if (id !== "timeline") return;
      ns.plot(id).on("plotly_click", (click) => ns.openEvent(click.points[0].customdata));
    });
    ns.on("message", (header) => {
      if (header.run === null) return;
      if (header.events !== mark) {
        mark = header.events;
        drawPanel();
      }
      if (ns.range && !ns.view.paused && header.eventEnd - 0.5 > ns.axisRange()[1]) {
        ns.setRange([ns.range[0], header.eventEnd]);
      }
      ask();
    });
    ns.on("rows", drawPosition);
    ns.on("range", () => { ask(); ns.later(drawTimeline); });
    ns.on("theme", ask);
    ns.on("resized", (id) => { if (id === "timeline") { ask(); ns.later(drawTimeline); } });
    ns.on("view", () => { drawPanel(); ask(); });
  };
})(window.nanscope);
