// The rows of the event table. They come in parts (dashboard/event_feed.py): what is newer than what is held, and with
// it some of what is older, until everything is here; so a change costs its own row however many there are.
(function (ns) {
  "use strict";

  const PATIENCE_MS = 5000; // an answer that takes longer is asked for again
  /** @type {Map<string, EventRow>} */
  const rows = new Map(); // id -> row
  /** @type {Record<string, string>} */
  let causes = {}; // id of an event that followed from another -> id of that one
  /** @type {EventRowsAnswer | null} */
  let held = null; // the numbers of the last answer: what of the run is here
  /** @type {EventRow[] | null} */
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

  function forget() {
    rows.clear();
    causes = {};
    inOrder = held = heldMark = asked = null;
    ns.emit("rows", null);
  }

  // What is about the probe alone is listed where somebody asks for its kind, or has it open.
  const isListed = (row) => !row.is_last || ns.view.muted.includes(row.kind) || row.id === ns.view.event;
  ns.eventRows = () => [...rows.values()].filter(isListed);
  ns.quietRows = () => [...rows.values()].filter((row) => !isListed(row));
  // Id of the event that began the fault of this one; undefined where it is a fault of its own.
  ns.causeOf = (id) => causes[id];

  ns.takeRows = function (answer) {
    if (asked === null || answer.run !== ns.view.run) return;
    if (answer.clear && held !== null) {
      const { mark: now, run } = asked;
      forget();
      asked = { mark: now, run };
    }
    for (const row of answer.rows) rows.set(row.id, row);
    causes = answer.causes;
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
    inOrder ||= ns.eventRows().sort(
      (a, b) => Number(a.is_last) - Number(b.is_last) || a.step - b.step || a.severity_order - b.severity_order || (a.time < b.time ? -1 : a.time > b.time ? 1 : 0)
    );
    return inOrder;
  };

  ns.startTable = function () {
    ns.on("message", (header) => {
      if (header.run === null || header.run !== ns.view.run) return;
      mark = header.events;
      ask();
    });
    let run = ns.view.run;
    ns.on("view", () => {
      inOrder = null; // which kinds are listed
      if (ns.view.run === run) return;
      run = ns.view.run;
      mark = null;
      forget();
    });
  };
})(window.nanscope);
