// Notes at steps of a run: written by the key `m`, kept by the server with the run (dashboard/serving/api/note_routes.py),
// and here as `ns.annotations`, [{id, step, text}] by step. Flags and the list are in ns_87_note_marks.js.
(function (ns) {
  "use strict";

  const MOST_TEXT = 500; // as in dashboard/serving/api/note_routes.py
  const UNDO_MS = 8000;
  const field = ns.make("input", "ns-note-field");
  let edited = null; // {run, step, id}; id is null for a new one
  let gone = []; // notes that were deleted and can be put back, each with its run
  let problem = "";
  let clearing = 0;
  let isSending = false;

  ns.annotations = [];

  const dialog = () => ns.byId("note-dialog");
  const address = (run, id) => `/api/v1/runs/${encodeURIComponent(run)}/notes${id === null ? "" : `/${id}`}`;

  // Returns why it was not done; empty where it was.
  async function ask(method, run, id, body) {
    const options = { method, headers: { "content-type": "application/json" } };
    if (body) options.body = JSON.stringify(body);
    try {
      const answer = await fetch(address(run, id), options);
      if (answer.ok) return "";
      const { error } = await answer.json();
      return error.message;
    } catch {
      return "the dashboard does not answer";
    }
  }

  function place(step) {
    const tracks = ns.byId("tracks").getBoundingClientRect();
    const at = ns.placeOfStep(step);
    const width = Math.min(420, window.innerWidth - 24);
    const left = at === null ? (window.innerWidth - width) / 2 : tracks.left + at - width / 2;
    dialog().style.left = Math.max(12, Math.min(window.innerWidth - width - 12, left)) + "px";
  }

  function open(note) {
    edited = { run: ns.view.run, step: note.step, id: note.id ?? null };
    field.value = note.text || "";
    ns.setText(ns.byId("note-title"), `${edited.id === null ? "Note" : "Change the note"} at step ${ns.count(note.step)}`);
    ns.setText(ns.byId("note-said"), "");
    ns.byId("note-delete").hidden = edited.id === null;
    dialog().showModal();
    place(note.step);
    field.focus();
    field.select();
  }

  // At the crosshair's step, else at the newest.
  ns.addNote = function () {
    if (document.querySelector("dialog[open]")) return;
    const step = ns.crosshair() ?? ns.newestStep;
    if (!ns.mayChange()) return tell(ns.VIEW_ONLY);
    if (ns.view.run === null || step === null) return tell("A note belongs to a step, and this run has none yet.");
    open({ step });
  };
  ns.editNote = (id) => {
    const note = ns.annotations.find((each) => each.id === id);
    if (note && ns.mayChange()) open(note);
  };

  async function save(event) {
    event.preventDefault();
    const text = field.value.trim();
    if (isSending || !edited) return;
    if (!text) return void ns.setText(ns.byId("note-said"), "Write something first.");
    isSending = true;
    const { run, step, id } = edited;
    const why = await ask(id === null ? "POST" : "PUT", run, id, { step, text });
    isSending = false;
    if (why) ns.setText(ns.byId("note-said"), `Not kept: ${why}.`);
    else dialog().close();
  }

  function drawUndo() {
    const lines = gone.map((note) => {
      const line = ns.make("div", "", `Deleted the note at step ${ns.count(note.step)}. `);
      const undo = ns.make("button", "ns-button", "Undo");
      undo.type = "button";
      undo.addEventListener("click", () => putBack(note));
      line.append(undo);
      return line;
    });
    if (problem) lines.push(ns.make("div", "", problem));
    ns.byId("notes-undo").replaceChildren(...lines);
  }

  // A sentence at the foot of the page, for some seconds.
  function tell(text) {
    problem = text;
    window.clearTimeout(clearing);
    if (text) clearing = window.setTimeout(tell, UNDO_MS, "");
    drawUndo();
  }

  ns.tell = tell;

  function forget(note) {
    gone = gone.filter((each) => each !== note);
    drawUndo();
  }

  ns.deleteNote = async function (id) {
    const found = ns.annotations.find((each) => each.id === id);
    if (!found) return;
    const note = { ...found, run: ns.view.run };
    const why = await ask("DELETE", note.run, id);
    if (why) return tell(`The note stays: ${why}.`);
    gone.push(note);
    window.setTimeout(forget, UNDO_MS, note);
    drawUndo();
  };

  async function putBack(note) {
    forget(note);
    const why = await ask("PUT", note.run, note.id, { step: note.step, text: note.text });
    if (why) tell(`The note is not back: ${why}.`);
  }

  function take(header) {
    if (header.run !== null && header.run !== ns.view.run) return;
    if (!header.notes) return;
    ns.annotations = header.notes;
    ns.emit("notes", ns.annotations);
  }

  function makeField() {
    Object.assign(field, { type: "text", maxLength: MOST_TEXT, autocomplete: "off" });
    ns.setAttribute(field, "aria-label", "Note");
    ns.byId("note-place").append(field);
  }

  ns.startNotes = function () {
    makeField();
    ns.startNoteMarks();
    field.addEventListener("keydown", (event) => event.key === "Enter" && !event.isComposing && save(event));
    ns.byId("note-save").addEventListener("click", save);
    ns.byId("note-cancel").addEventListener("click", () => dialog().close());
    ns.byId("note-delete").addEventListener("click", () => { dialog().close(); ns.deleteNote(edited.id); });
    dialog().addEventListener("click", ({ target }) => target === dialog() && dialog().close()); // beside it
    ns.on("message", take);
    let { run } = ns.view;
    ns.on("view", (view) => {
      if (view.run === run) return;
      run = view.run;
      ns.annotations = [];
      ns.emit("notes", ns.annotations);
    });
  };
})(window.nanscope);
