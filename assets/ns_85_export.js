// Exports: what a file will cover, said in the menu while it is open; all of the view as one file, or one track of it
// (a dialog, from the menu or by a right click at a track's name). The server makes the files.
(function (ns) {
  "use strict";

  const isPart = () => ns.view.first !== null || ns.view.window !== null;
  const base = () => `/api/v1/runs/${encodeURIComponent(ns.view.run)}`;
  let asked = 0;

  function stepsText() {
    if (!ns.range || ns.newestStep === null) return "no steps yet";
    const last = Math.max(ns.range[0], Math.min(ns.range[1] - 1, ns.newestStep));
    return ns.range[0] === last ? `step ${ns.count(last)}` : `steps ${ns.count(ns.range[0])}\u2013${ns.count(last)}`;
  }

  function rowsText() {
    const rows = ns.heatmap.kinds.filter((kind) => kind !== "parameter").length;
    const of = ns.statistic().of;
    return rows ? `${ns.count(rows)} ${of}${rows === 1 ? "" : "s"}` : "";
  }

  // Such as "steps 0-599, 9 layers".
  ns.exportCovers = function (track = null) {
    if (ns.view.run === null) return "No run is shown.";
    return [stepsText(), track === null || track === "heatmap" ? rowsText() : ""].filter(Boolean).join(", ");
  };

  function draw() {
    if (!ns.byId("menu").hidden) ns.setText(ns.byId("export-covers"), ns.exportCovers());
    if (ns.byId("export-dialog").open) {
      ns.setText(ns.byId("export-track-covers"), ns.exportCovers(ns.byId("export-choice").value));
    }
  }

  // Asks for a file of the view, or of one track of it.
  ns.exportAs = function (form, track = null) {
    if (ns.view.run === null) return;
    const query = new URLSearchParams({ format: form, rank: String(ns.view.rank) });
    // The whole run, unless a part of it is on screen.
    if (ns.range && isPart()) {
      query.set("first", String(ns.range[0]));
      query.set("end", String(ns.range[1]));
    }
    query.set("heatmap", ns.view.heatmap);
    if (track !== null) query.set("track", track);
    if (form === "html") query.set("theme", ns.themeName);
    window.location.assign(`${base()}/export?${query}`);
  };

  function setForms(isOff) {
    const forms = /** @type {NodeListOf<HTMLButtonElement>} */ (ns.byId("export-forms").querySelectorAll("[data-form]"));
    for (const button of forms) button.disabled = isOff;
  }

  function list(tracks, wanted) {
    const options = tracks.map(({ id, title }) => {
      const option = ns.make("option", "", title === id || id === "heatmap" ? title : `${title} (${id})`);
      option.value = id;
      return option;
    });
    const choice = ns.byId("export-choice");
    choice.replaceChildren(...options);
    if (tracks.some((track) => track.id === wanted)) choice.value = wanted;
    setForms(!tracks.length);
    ns.setText(ns.byId("export-said"), tracks.length ? "" : "This rank has recorded nothing yet.");
    draw();
  }

  async function load(wanted) {
    const number = (asked += 1);
    let said = "";
    try {
      const answer = await fetch(`${base()}/tracks?rank=${ns.view.rank}`);
      const body = await answer.json();
      if (number !== asked) return;
      if (answer.ok) return list(body.tracks, wanted);
      said = body.error.message;
    } catch {
      said = "the dashboard does not answer";
    }
    if (number === asked) ns.setText(ns.byId("export-said"), `The tracks cannot be listed: ${said}.`);
  }

  ns.openExport = function (track = null) {
    if (document.querySelector("dialog[open]")) return;
    setForms(true);
    ns.byId("export-choice").replaceChildren();
    ns.setText(ns.byId("export-said"), ns.view.run === null ? "No run is shown." : "");
    ns.byId("export-dialog").showModal();
    draw();
    if (ns.view.run !== null) load(track);
  };

  ns.startExport = function () {
    const dialog = ns.byId("export-dialog");
    ns.byId("export-close").addEventListener("click", () => dialog.close());
    ns.byId("export-choice").addEventListener("change", draw);
    ns.byId("export-forms").addEventListener("click", ({ target }) => {
      if (target.dataset.form) ns.exportAs(target.dataset.form, ns.byId("export-choice").value);
    });
    ns.byId("menu").addEventListener("focusin", draw); // it opens with a focus
    for (const name of ["message", "range", "view"]) ns.on(name, () => ns.later(draw));
    document.addEventListener("contextmenu", (event) => {
      const track = event.target.closest(".ns-gutter")?.closest("[data-chart]")?.dataset.chart;
      if (!track || track === "timeline") return;
      event.preventDefault();
      ns.openExport(track);
    });
  };
})(window.nanscope);
