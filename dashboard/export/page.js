// The script of an exported page: draws the figures, keeps their x-axes together, switches the theme.
"use strict";
(() => {
  const root = document.documentElement;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const wantsDark = window.matchMedia("(prefers-color-scheme: dark)");
  let chosen = root.dataset.theme;

  const isDark = () => chosen === "dark" || (chosen === "system" && wantsDark.matches);

  // The inverse of `difference` in figures.py.
  function applyPatch(base, patch) {
    if ("set" in patch) return patch.set;
    const result = Array.isArray(base) ? base.slice() : Object.assign({}, base);
    for (const key of Object.keys(patch.change)) result[key] = applyPatch(base[key], patch.change[key]);
    return result;
  }

  function repeatNames(trace) {
    if (trace.type !== "heatmap" || !trace.text || Array.isArray(trace.text)) return trace;
    const text = trace.text.rows.map((name) => new Array(trace.text.columns).fill(name));
    return Object.assign({}, trace, { text });
  }

  function draw() {
    root.dataset.mantineColorScheme = isDark() ? "dark" : "light";
    for (const [id, entry] of Object.entries(figures)) {
      const figure = isDark() ? applyPatch(entry.light, entry.dark) : entry.light;
      const layout = Object.assign({}, figure.layout, { height: entry.height - 2, autosize: true });
      const node = document.getElementById("chart-" + id);
      Plotly.react(node, figure.data.map(repeatNames), layout, { responsive: true, displaylogo: false });
    }
  }

  function followZoom(id, change) {
    let update = null;
    if (change["xaxis.range[0]"] !== undefined) {
      update = { "xaxis.range": [change["xaxis.range[0]"], change["xaxis.range[1]"]], "xaxis.autorange": false };
    } else if (change["xaxis.autorange"]) {
      update = { "xaxis.autorange": true };
    }
    if (update === null) return;
    for (const other of Object.keys(figures)) {
      if (other === id) continue;
      const node = document.getElementById("chart-" + other);
      const range = node.layout.xaxis.range;
      const same = range && update["xaxis.range"] && range.every((end, i) => end === update["xaxis.range"][i]);
      if (!same && !(update["xaxis.autorange"] && node.layout.xaxis.autorange)) Plotly.relayout(node, update);
    }
  }

  function openEvent(id) {
    const details = document.getElementById("event-" + id);
    if (!details) return;
    details.open = true;
    details.scrollIntoView({ block: "start" });
    details.querySelector("summary").focus({ preventScroll: true });
  }

  draw();
  for (const id of Object.keys(figures)) {
    document.getElementById("chart-" + id).on("plotly_relayout", (change) => followZoom(id, change));
  }
  const timeline = document.getElementById("chart-timeline");
  if (timeline) timeline.on("plotly_click", (click) => openEvent(click.points[0].customdata));
  wantsDark.addEventListener("change", draw);
  document.getElementById("theme-switch").addEventListener("click", () => {
    chosen = isDark() ? "light" : "dark";
    draw();
  });
  if (location.hash.startsWith("#event-")) openEvent(location.hash.slice("#event-".length));
})();
