// The rows of the event table. They come in parts (dashboard/event_feed.py): what is newer than what is held, and with
// it some of what is older, until everything is here; so a change costs its own row however many there are.
(function (ns) {
  "use strict";

  const PATIENCE_MS = 5000; // an answer that takes longer is asked for again
  const rows = new Map(); // id -> row
  let held = null; // the numbers of the last answer: what of the run is here
  let inOrder = null; // rows by step; null until somebody asks
  let mark = null; // changes whenever any event does
  let heldMark = null; // the newest one that an answer was asked for with
  let asked = null; // what is on its way: its mark, and when it was asked for
  let askings = 0;

  const isComplete = () => held !== null && held.low === 0 && held.high === held.newest;

  // One question at a time; nothing to do where everything is here.
  function ask() {
    const { run } = ns.view;
    if (run === null || mark === null || (mark === heldMark && isComplete())) return;
    if (asked && asked.run === run && performance.now() - asked.at < PATIENCE_MS) return;
    asked = { run, mark, at: performance.now() };
    askings += 1;
    const { epoch = null, low = 0, high = 0 } = held || {};
    ns.setProps("event-rows-scope", { data: { run, epoch, low, high, mark: askings } });
  }

  // Calls with the grid; in order, though it may still have to be made.
  const withGrid = (call) => window.dash_ag_grid.getApiAsync("event-table").then(call);

  function forget() {
    rows.clear();
    inOrder = held = heldMark = asked = null;
    withGrid((grid) => grid.setGridOption("rowData", []));
  }

  function put(list) {
    withGrid((grid) => {
      const [update, add] = [[], []];
      for (const row of list) (grid.getRowNode(row.id) ? update : add).push(row);
      grid.applyTransaction({ add, update });
      if (list.some((row) => row.id === ns.view.event)) ns.selectRow(ns.view.event);
    });
  }

  ns.takeRows = function (answer) {
    if (asked === null || answer.run !== ns.view.run) return;
    if (answer.clear && held !== null) {
      const { mark: now, run } = asked;
      forget();
      asked = { mark: now, run };
    }
    for (const row of answer.rows) rows.set(row.id, row);
    if (answer.rows.length) put(answer.rows);
    inOrder = null;
    held = answer;
    heldMark = asked.mark;
    asked = null;
    ns.emit("rows", answer);
    ask();
  };

  // All rows by step, the severest of a moment first, what is listed last at the end; null while some of them are still to come.
  ns.rowsInOrder = function () {
    if (!isComplete()) return null;
    inOrder ||= [...rows.values()].sort(
      (a, b) => a.is_last - b.is_last || a.step - b.step || a.severity_order - b.severity_order || (a.time < b.time ? -1 : a.time > b.time ? 1 : 0)
    );
    return inOrder;
  };

  // The grid tells of a row that a script has selected just as of one that the user has, but later: by then another
  // event may be open, and this one must not come back.
  const selected = new Set(); // ids of rows that a script has selected and the grid has not told of
  ns.selectRow = (id) => withGrid((grid) => {
    const row = grid.getRowNode(id);
    if (!row || row.isSelected()) return;
    selected.add(id);
    row.setSelected(true, true);
  });
  ns.takeSelected = function (list) {
    if (list.length && !selected.delete(list[0].id)) ns.openEvent(list[0].id);
  };
  const forgetSelected = ({ target, type, key }) => {
    if (target.closest?.("#event-table") && (type === "pointerdown" || key === " " || key === "Enter")) selected.clear();
  };
  for (const kind of ["pointerdown", "keydown"]) document.addEventListener(kind, forgetSelected, true);

  window.dashAgGridFunctions = Object.assign(window.dashAgGridFunctions || {}, {
    // The severest of a step comes first in either direction; what says nothing of the training comes last.
    compareSteps: (a, b, rowA, rowB, isDescending) => {
      const last = rowA.data.is_last - rowB.data.is_last;
      const tie = last || rowA.data.severity_order - rowB.data.severity_order;
      return (last ? 0 : a - b) || (isDescending ? -tie : tie);
    },
  });

  ns.startTable = function () {
    ns.on("message", (header) => {
      if (header.run === null || header.run !== ns.view.run) return;
      mark = header.events;
      ask();
    });
    let run = ns.view.run;
    ns.on("view", () => {
      if (ns.view.run === run) return;
      run = ns.view.run;
      mark = null;
      forget();
    });
  };
})(window.nanscope);
