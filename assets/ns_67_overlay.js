// Ticked runs in the overview: their lines over those of the run that is open, in the tracks of loss and gradient norm.
// Their values are fetched for the steps on screen, again when those change, and every few seconds while they grow.
(function (ns) {
  "use strict";

  const PATIENCE_MS = 250; // a zoom that goes on asks once
  const AGAIN_MS = 3000;
  const OF_TRACKS = { loss: "loss", grad_norm: "grad_norm" };
  const held = new Map(); // run -> {key, at, series}
  let waiting = 0;

  const others = () => ns.view.compared.filter((run) => run !== ns.view.run);
  const isSeen = () => ns.view.tab === "overview" && !document.hidden;

  function addressOf(run) {
    const query = new URLSearchParams({ points: "600" });
    for (const name of Object.values(OF_TRACKS)) query.append("name", name);
    if (ns.view.paused && ns.range) {
      query.set("first", String(ns.range[0]));
      query.set("end", String(ns.range[1]));
    }
    return `/api/v1/runs/${encodeURIComponent(run)}/series/values?${query}`;
  }

  async function fetchRun(run, key) {
    try {
      const answer = await fetch(key, { credentials: "same-origin" });
      const series = answer.ok ? (await answer.json()).series : {};
      held.set(run, { key, at: performance.now(), series });
    } catch {
      held.set(run, { key, at: performance.now(), series: held.get(run)?.series ?? {} }); // it is asked again
    }
    ns.later(ns.drawLines);
  }

  function ask() {
    waiting = 0;
    if (!isSeen()) return;
    for (const run of held.keys()) if (!others().includes(run)) held.delete(run);
    for (const run of others()) {
      const key = addressOf(run), known = held.get(run);
      if (known && known.key === key && performance.now() - known.at < AGAIN_MS) continue;
      held.set(run, { key, at: performance.now(), series: known?.series ?? {} });
      fetchRun(run, key);
    }
  }

  const soon = () => { if (!waiting && others().length) waiting = window.setTimeout(ask, PATIENCE_MS); };

  const labelOf = (run) => ns.runs?.find((each) => each.run === run)?.name ?? run;

  // What is no number has its name, and nothing at all is null: both break a line.
  const numberOf = (value) => (typeof value === "number" ? value : NaN);

  // Lines of a track over its own, in the colours of the comparison: the open run has the first one.
  ns.overlayLines = function (id) {
    const name = OF_TRACKS[id];
    if (!name || !held.size) return [];
    const { series } = ns.theme().colours;
    return others().flatMap((run, index) => {
      const columns = held.get(run)?.series[name];
      if (!columns) return [];
      const x = columns.step.map((step, at) => step + (columns.pooled[at] - 1) / 2);
      const colour = series[(index + 1) % series.length];
      return [{ name: run, label: labelOf(run), x, y: columns.mean.map(numberOf), colour, width: 1.2, hasDots: x.length <= 3 }];
    });
  };

  ns.startOverlay = function () {
    ns.on("view", () => {
      for (const run of held.keys()) if (!others().includes(run)) { held.delete(run); ns.later(ns.drawLines); }
      soon();
    });
    for (const name of ["range", "tab"]) ns.on(name, soon);
    ns.on("message", (header) => { if (header.charts) soon(); });
    soon();
  };
})(window.nanscope);
