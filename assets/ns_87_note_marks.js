// Notes at steps as they are seen: flags over the tracks and in the whole-run strip, and the list in the view of events,
// which has all of them for the keyboard.
(function (ns) {
  "use strict";

  const FLAG = [7, 6]; // px, in the strip
  const ROUND_STEPS = 50; // shown before and after the step of a note
  const SHOWN = 80; // characters of a note's own name
  const flags = ns.make("div", "ns-note-flags");

  // Where a step lies in the tracks, in pixels; null outside of what is shown.
  ns.placeOfStep = function (step) {
    const box = ns.heatmapBox?.();
    if (!box || !ns.range) return null;
    const share = ns.axis().of(step);
    return share < 0 || share > 1 ? null : box.l + share * box.w;
  };

  // For canvases: a flag at each note; `xOf` is where a step lies.
  ns.drawNoteFlags = function (context, xOf) {
    if (!ns.annotations.length) return;
    const [width, height] = FLAG;
    context.fillStyle = ns.theme().colours.text;
    for (const { step } of ns.annotations) {
      const x = Math.round(xOf(step));
      context.fillRect(x, 1, 1, 2 * height);
      context.beginPath();
      context.moveTo(x + 1, 1);
      context.lineTo(x + 1 + width, 1 + height / 2);
      context.lineTo(x + 1, 1 + height);
      context.fill();
    }
  };

  function flag({ id, step, text }, at) {
    const button = ns.make("button", "ns-note-flag");
    button.type = "button";
    button.tabIndex = -1;
    button.dataset.note = id;
    button.style.left = at + "px";
    ns.setTitle(button, `Step ${ns.count(step)}`, text);
    ns.setAttribute(button, "aria-label", `Note at step ${ns.count(step)}: ${text.slice(0, SHOWN)}`);
    return button;
  }

  let drawn = "";
  function drawFlags() {
    const placed = ns.annotations.map((note) => ({ note, at: ns.placeOfStep(note.step) })).filter(({ at }) => at !== null);
    const key = JSON.stringify(placed.map(({ note: { id, text }, at }) => [id, text, Math.round(at)]));
    if (key === drawn) return;
    drawn = key;
    flags.replaceChildren(...placed.map(({ note, at }) => flag(note, at)));
  }

  // ----------------------------------------------------------------------------------------------------- list

  function act(text, name, label) {
    const button = ns.make("button", "ns-link", text);
    button.type = "button";
    button.dataset.act = name;
    ns.setAttribute(button, "aria-label", label);
    return button;
  }

  function line({ id, step, text }) {
    const item = ns.make("li", "ns-note-line");
    item.dataset.note = id;
    const at = `step ${ns.count(step)}`;
    item.append(
      act(at, "show", `Show ${at}`), ns.make("span", "ns-note-text", text),
      act("Edit", "edit", `Edit the note at ${at}`), act("Delete", "delete", `Delete the note at ${at}`),
    );
    return item;
  }

  let listed = "[]";
  function drawList() {
    const notes = ns.annotations;
    const key = JSON.stringify(notes);
    if (key === listed) return;
    listed = key;
    ns.byId("notes").hidden = !notes.length;
    ns.setText(ns.byId("notes-count"), ns.count(notes.length));
    const list = ns.byId("notes-list");
    const before = list.contains(document.activeElement) ? [...list.children].indexOf(document.activeElement.closest("li")) : -1;
    list.replaceChildren(...notes.map(line));
    if (before >= 0) list.children[Math.min(before, list.children.length - 1)]?.querySelector("button").focus();
  }

  const ACTS = {
    show: (id) => {
      const note = ns.annotations.find((each) => each.id === id);
      if (!note) return;
      ns.chooseTab("overview");
      ns.zoom(note.step - ROUND_STEPS, note.step + ROUND_STEPS);
    },
    edit: ns.editNote,
    delete: ns.deleteNote,
  };

  ns.startNoteMarks = function () {
    ns.byId("tracks").append(flags);
    flags.addEventListener("click", ({ target }) => target.dataset.note && ns.editNote(target.dataset.note));
    ns.byId("notes-list").addEventListener("click", ({ target }) => {
      const { act: name } = target.closest("[data-act]")?.dataset || {};
      if (name) ACTS[name](target.closest("[data-note]").dataset.note);
    });
    ns.on("notes", () => { drawList(); ns.later(drawFlags); });
    for (const name of ["range", "heatmap", "resized", "tab"]) ns.on(name, () => ns.later(drawFlags));
  };
})(window.nanscope);
