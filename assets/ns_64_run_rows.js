// One row of the table of all runs: its cells, and what they say (dashboard/page/run_table.py). In the order of the
// heads in dashboard/page/views/runs_section.py.
(function (ns) {
  "use strict";

  ns.RUN_CELLS = ["tick", "name", "state", "step", "best", "loss", "faults", "started", "note", "delete"];
  ns.RUN_STATES = { running: "live", finished: "ended", exception: "exception", killed: "killed", silent: "silent" };
  const NUMBERS = ["step", "best"];
  const ICONS = { running: "live", silent: "lagging" }; // as the one button of the header has them
  const SPARK = [110, 24]; // px, as in runs.css

  ns.runLabel = (row) => `${row.name} \u00b7 ${row.run.slice(-8)}`;

  function button(className, act) {
    const made = ns.make("button", className);
    made.type = "button";
    made.dataset.act = act;
    return made;
  }

  ns.makeRunRow = function (run) {
    const row = ns.make("tr");
    row.dataset.run = run;
    const cells = /** @type {Record<string, HTMLTableCellElement>} */ ({});
    for (const name of ns.RUN_CELLS) {
      cells[name] = ns.make(name === "name" ? "th" : "td", `ns-runs-${name}${NUMBERS.includes(name) ? " ns-number" : ""}`);
      row.append(cells[name]);
    }
    cells.name.scope = "row";
    const parts = {
      tick: ns.make("input"), swatch: ns.make("span", "ns-runs-swatch"), open: button("ns-link ns-runs-open", "open"),
      id: ns.make("span", "ns-small"), star: button("ns-runs-star", "star"), state: ns.make("span", "ns-state"),
      icon: ns.make("span", "ns-icon"), word: ns.make("span"), spark: ns.make("canvas", "ns-runs-spark"),
      note: button("ns-runs-edit", "note"), remove: button("ns-button ns-runs-remove", "delete"),
    };
    parts.tick.type = "checkbox";
    for (const each of [parts.icon, parts.swatch, parts.spark]) each.setAttribute("aria-hidden", "true");
    parts.state.append(parts.icon, parts.word);
    cells.tick.append(parts.tick);
    cells.name.append(parts.swatch, parts.open, " ", parts.id, " ", parts.star);
    cells.state.append(parts.state);
    cells.loss.append(parts.spark);
    cells.note.append(parts.note);
    cells.delete.append(parts.remove);
    return { row, cells, parts };
  };

  /** @param {HTMLCanvasElement} canvas @param {(number | null)[]} values @param {string} colour */
  function spark(canvas, values, colour) {
    const key = JSON.stringify([values, colour]);
    if (canvas.dataset.key === key) return;
    canvas.dataset.key = key;
    const context = canvas.getContext("2d");
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = SPARK;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    context.scale(ratio, ratio);
    const finite = values.filter((value) => value !== null);
    if (finite.length < 2) return;
    const low = Math.min(...finite), span = Math.max(...finite) - low || 1;
    context.strokeStyle = colour;
    context.beginPath();
    let isDown = false;
    values.forEach((value, index) => {
      const x = (index / (values.length - 1)) * (width - 2) + 1;
      if (value !== null) context[isDown ? "lineTo" : "moveTo"](x, height - 2 - ((value - low) / span) * (height - 4));
      isDown = value !== null;
    });
    context.stroke();
  }

  const faultOf = (count, icon, severity) => {
    const part = ns.make("span", `ns-fault-${severity}`, `${icon} ${ns.count(count)}`);
    part.append(ns.make("span", "ns-hidden", ` ${severity} `));
    ns.setTitle(part, `${ns.count(count)} ${severity}`);
    return part;
  };

  /** @param {HTMLElement} cell @param {RunRow} data */
  function drawFaults(cell, { critical, warnings }) {
    const key = `${critical} ${warnings}`;
    if (cell.dataset.key === key) return;
    cell.dataset.key = key;
    const parts = [];
    if (critical) parts.push(faultOf(critical, "\u25c6", "critical"));
    if (warnings) parts.push(faultOf(warnings, "\u25b2", "warning"));
    cell.replaceChildren(...(parts.length ? parts : ["none"]));
  }

  const absolute = (time) => new Date(time * 1000).toLocaleString();
  const ago = (time) => (time > ns.now() ? absolute(time) : `${ns.seconds(ns.now() - time)} ago`);

  // The journal is one run's: its models are kept and deleted together, in the row of their series; each is compared.
  function drawSeries(row, parts, data) {
    const isSeries = data.isFolded !== undefined, isModel = data.series !== null && !isSeries;
    parts.tick.hidden = isSeries;
    parts.star.hidden = parts.remove.hidden = isModel;
    if (isSeries) ns.setAttribute(parts.open, "aria-expanded", String(!data.isFolded));
    row.classList.toggle("ns-runs-series", isSeries);
  }

  ns.drawRunRow = function (made, data) {
    const { row, cells, parts } = made;
    made.shown = data;
    const at = data.isFolded === undefined ? ns.view.compared.indexOf(data.run) : -1;
    const isLeaving = ns.isLeaving(data.series ?? data.run);
    drawSeries(row, parts, data);
    row.classList.toggle("ns-leaving", isLeaving);
    row.classList.toggle("ns-ticked", at >= 0);
    if (data.isCurrent ?? data.run === ns.view.run) row.setAttribute("aria-current", "true");
    else row.removeAttribute("aria-current");
    parts.tick.checked = at >= 0;
    parts.tick.disabled = at < 0 && ns.view.compared.length >= ns.MOST_COMPARED;
    ns.setAttribute(parts.tick, "aria-label", `Compare ${ns.runLabel(data)}`);
    parts.swatch.hidden = at < 0;
    const colours = ns.theme().colours;
    const colour = at < 0 ? colours.muted : colours.series[at % colours.series.length];
    parts.swatch.style.background = colour;
    ns.setText(parts.open, data.label ?? data.name);
    ns.setText(parts.id, data.run.slice(-8));
    ns.setTitle(parts.open, `${data.name} \u00b7 ${data.run}`, data.isFolded === undefined ? "Show this run" : "Show or hide its models");
    ns.setText(parts.star, data.starred ? "\u2605" : "\u2606");
    ns.setAttribute(parts.star, "aria-pressed", String(data.starred));
    ns.setAttribute(parts.star, "aria-label", `Keep ${ns.runLabel(data)}`);
    const why = ns.mayChange() ? "" : ns.VIEW_ONLY;
    parts.star.disabled = parts.note.disabled = why !== "";
    ns.setTitle(parts.star, why || (data.starred ? "Starred: never deleted. Remove the star" : "Star this run to keep it"));
    const isLive = data.state === "running";
    ns.setAttribute(parts.state, "data-state", ICONS[data.state] || data.state);
    ns.setText(parts.word, isLive ? ns.RUN_STATES.running : `${ns.RUN_STATES[data.state] || data.state} ${ago(data.written)}`);
    ns.setTitle(parts.state, `Newest step: ${absolute(data.written)}`);
    ns.setText(cells.step, data.step === null ? "\u2013" : ns.count(data.step));
    ns.setText(cells.best, data.best !== null ? ns.significant(data.best) : data.is_read ? "\u2013" : "\u2026");
    spark(parts.spark, data.losses, colour);
    drawFaults(cells.faults, data);
    ns.setText(cells.started, ago(data.started));
    ns.setTitle(cells.started, absolute(data.started));
    if (!ns.isEditing(cells.note)) {
      ns.setText(parts.note, data.note || "Add a note");
      parts.note.classList.toggle("ns-no-note", !data.note);
      ns.setAttribute(parts.note, "aria-label", `Note on ${ns.runLabel(data)}: ${data.note || "none"}`);
    }
    ns.setText(parts.remove, isLeaving ? "Undo" : "Delete");
    ns.setAttribute(parts.remove, "aria-label", `${isLeaving ? "Keep" : "Delete"} ${ns.runLabel(data)}`);
    parts.remove.disabled = !isLeaving && (why || data.stays) !== "";
    ns.setTitle(parts.remove, why || data.stays);
  };
})(window.nanscope);
