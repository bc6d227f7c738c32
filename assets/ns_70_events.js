// The event panel beside the charts: opening, closing, next and previous. Its content comes from a Dash callback
// (dashboard/page/callbacks/events.py).
(function (ns) {
  "use strict";

  let mark = null; // changes whenever any event does
  let opener = null; // gets the focus back

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
    "event-copy-link": (button) => ns.copy(ns.address(), button),
    "event-download": downloadEvent,
  };

  ns.startEvents = function () {
    ns.startPanel();
    document.addEventListener("click", (click) => {
      const button = click.target.closest("button");
      if (!button) return;
      if (button.id in ACTIONS) ACTIONS[button.id](button);
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
    });
    ns.on("rows", drawPosition);
    ns.on("view", drawPanel);
  };
})(window.nanscope);
