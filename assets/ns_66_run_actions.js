// What is done with runs in the table of all of them: shown, starred, annotated, deleted with some seconds to take it
// back; and the comparison of the ticked ones. The server does it (dashboard/page/callbacks/runs.py).
(function (ns) {
  "use strict";

  const UNDO_MS = 8000;
  const PATIENCE_MS = 5000;
  const ROUND_STEPS = 50; // shown before and after the step at which two runs part
  const leaving = new Map(); // run -> its timer and label, until it is deleted
  let problem = "";
  let marks = 0;
  let compared = "[]"; // what the comparison was asked for with

  ns.isLeaving = (run) => leaving.has(run);
  ns.isEditing = (cell) => cell.querySelector("input") !== null;

  // One at a time: an answer is not heard any more once something else has been asked.
  const queue = [];
  let waiting = 0;

  function act(run, name, value = "") {
    queue.push({ run, act: name, value, mark: (marks += 1) });
    next();
  }

  function next() {
    if (waiting || !queue.length) return;
    waiting = window.setTimeout(answered, PATIENCE_MS);
    ns.setProps("runs-action", { data: queue.shift() });
  }

  function answered() {
    window.clearTimeout(waiting);
    waiting = 0;
    next();
  }

  function show(run) {
    if (run === ns.view.run) ns.change({ tab: "overview" });
    else ns.chooseRun(run, true, { tab: "overview" });
  }

  // ------------------------------------------------------------------------------------------------- deletion

  function drawUndo() {
    const lines = [...leaving].map(([run, { label }]) => {
      const line = ns.make("div", "", `Deleted ${label}. `);
      const undo = ns.make("button", "ns-button", "Undo");
      undo.type = "button";
      undo.addEventListener("click", () => keep(run));
      line.append(undo);
      return line;
    });
    if (problem) lines.push(ns.make("div", "", problem));
    ns.byId("runs-undo").replaceChildren(...lines);
  }

  // Nothing is deleted until the time is up; a page that is closed before has deleted nothing.
  /** @param {RunRow} row */
  function remove(row) {
    problem = "";
    const timer = window.setTimeout(() => act(row.run, "delete"), UNDO_MS);
    leaving.set(row.run, { timer, label: ns.runLabel(row) });
    if (ns.view.compared.includes(row.run)) ns.change({ compared: ns.view.compared.filter((run) => run !== row.run) });
    drawUndo();
    ns.drawRuns();
  }

  function keep(run) {
    window.clearTimeout(leaving.get(run)?.timer);
    leaving.delete(run);
    drawUndo();
    ns.drawRuns();
  }

  let telling = 0;
  function tell(text) {
    problem = text;
    window.clearTimeout(telling);
    if (text) telling = window.setTimeout(tell, UNDO_MS, "");
    drawUndo();
  }

  ns.takeRunSaid = function (said) {
    answered();
    if (said.act === "delete") leaving.delete(said.run);
    tell(said.problem);
    ns.askRuns();
  };

  // ---------------------------------------------------------------------------------------------------- notes

  /** @param {RunRow} row @param {RunRowElements} elements */
  function editNote(row, { cells, parts }) {
    const input = ns.make("input", "ns-runs-input");
    Object.assign(input, { value: row.note, maxLength: 4000 });
    ns.setAttribute(input, "aria-label", `Note on ${ns.runLabel(row)}`);
    let isDone = false;
    const close = (isKept, isFocused) => {
      if (isDone) return;
      isDone = true;
      const note = input.value.trim();
      cells.note.replaceChildren(parts.note);
      if (isKept && note !== row.note) {
        (ns.runRow(row.run) || row).note = note;
        act(row.run, "note", note);
      }
      ns.drawRuns();
      if (isFocused) parts.note.focus();
    };
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.preventDefault();
      event.stopPropagation();
      close(event.key === "Enter", true);
    });
    input.addEventListener("blur", () => close(true, false));
    cells.note.replaceChildren(input);
    input.focus();
    input.select();
  }

  ns.actOnRow = function (name, row, element) {
    if (name === "open") show(row.run);
    else if (name === "note") editNote(row, element);
    else if (name === "delete") (leaving.has(row.run) ? keep(row.run) : remove(row));
    else if (name === "star") {
      const own = ns.runRow(row.run) || row;
      act(own.run, own.starred ? "unstar" : "star");
      own.starred = !own.starred;
      ns.drawRuns();
    }
  };

  // ----------------------------------------------------------------------------------------------- comparison

  // Asked for when something is ticked, and again when a run that goes on has grown by a tenth.
  function compare() {
    if (ns.view.tab !== "runs") return;
    const runs = ns.view.compared;
    const grown = runs.map((run) => {
      const row = ns.runRow(run);
      return row ? [row.state, Math.round(Math.log2((row.step ?? 0) + 1) * 8)] : null;
    });
    const key = runs.length < 2 ? "[]" : JSON.stringify([runs, grown]);
    if (key === compared) return;
    compared = key;
    ns.setProps("runs-compared", { data: { runs, mark: (marks += 1) } });
  }

  // The heads of the table of facts have the colours of the lines.
  function colourHeads() {
    const { series } = ns.theme().colours;
    const swatches = ns.byId("runs-comparison").querySelectorAll(".ns-runs-swatch");
    swatches.forEach((swatch, index) => { swatch.style.background = series[index % series.length]; });
  }

  ns.startRunActions = function () {
    ns.byId("runs-comparison").addEventListener("click", ({ target }) => {
      const button = target.closest("[data-show-run]");
      if (!button) return;
      const step = Number(button.dataset.showStep);
      show(button.dataset.showRun);
      ns.zoom(step - ROUND_STEPS, step + ROUND_STEPS);
    });
    new MutationObserver(colourHeads).observe(ns.byId("runs-comparison"), { childList: true, subtree: true });
    for (const name of ["view", "tab", "run-rows"]) ns.on(name, compare);
    ns.on("theme", colourHeads);
  };
})(window.nanscope);
