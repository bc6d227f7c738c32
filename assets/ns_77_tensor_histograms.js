// Histograms of a tensor over time, a canvas for each kind (ns_76_histogram_canvas.js). The pointer or the arrow keys
// choose a column and a bin; below each stands what a cast to a narrower format would lose there.
(function (ns) {
  "use strict";

  const { geometry, binAt, draw, total } = ns.histogramCanvas;
  const FAST = 10; // columns that an arrow with Shift moves
  let shown = []; // {kind, element, canvas, legend, column, bin}

  const axis = () => ns.templates.magnitudes;
  const sum = (counts, from, to) => total(counts.slice(from, to));

  // As dashboard/page/views/quantities.py: share_text.
  function percent(share) {
    if (share === 0 || share === 1) return `${100 * share} %`;
    if (share > 0.9999) return "> 99.99 %";
    return `${(100 * share).toFixed(Math.max(2, Math.ceil(-Math.log10(100 * share))))} %`;
  }

  const columnOf = (one) => one.column ?? one.kind.steps.length - 1;

  // What a format loses of a column: shares that become zero and that overflow.
  function losses(counts, { low, high }) {
    const all = Math.max(1, total(counts));
    return [sum(counts, 1, low) / all, sum(counts, high, axis().inf) / all];
  }

  function drawLegend(one) {
    const column = columnOf(one), counts = one.kind.counts[column];
    ns.setText(one.legend.firstElementChild, `step ${ns.count(one.kind.steps[column])}, ${ns.count(total(counts))} elements`);
    axis().formats.forEach((format, number) => {
      const [under, over] = losses(counts, format);
      const line = one.legend.children[number + 1];
      ns.setText(line.lastElementChild, `${format.name} ${percent(under + over)} outside`);
      ns.setTitle(line, `${format.name}, ${format.range}`, `${percent(under)} become 0, ${percent(over)} overflow`);
      line.classList.toggle("magnitude-bad", over > 0);
      line.firstElementChild.style.background = ns.theme().colours.series[number];
    });
    ns.setAttribute(one.canvas, "aria-valuemax", String(one.kind.steps.length - 1));
    ns.setAttribute(one.canvas, "aria-valuenow", String(column));
    ns.setAttribute(one.canvas, "aria-valuetext", words(one));
  }

  function words(one) {
    const column = columnOf(one), counts = one.kind.counts[column];
    const bin = one.bin ?? counts.indexOf(Math.max(...counts));
    const cell = `${axis().bins[bin]}: ${percent(counts[bin] / Math.max(1, total(counts)))}`;
    const outside = axis().formats.map((format) => `${format.name} ${percent(total(losses(counts, format)))} outside`);
    return `step ${ns.count(one.kind.steps[column])}, ${one.bin === null ? "most elements " : ""}${cell}; ${outside.join(", ")}`;
  }

  function drawTitle({ element, kind: { title, steps } }) {
    const many = steps.length === 1 ? "one histogram" : `${ns.count(steps.length)} histograms`;
    const range = steps.length === 1 ? "" : `, steps ${ns.count(steps[0])} to ${ns.count(steps[steps.length - 1])}`;
    ns.setText(element.firstElementChild.lastElementChild, ` ${many}${range}`);
    ns.setText(element.firstElementChild.firstElementChild, title);
  }

  function redraw() {
    for (const one of shown) { drawTitle(one); draw(one); drawLegend(one); }
  }

  function make(kind) {
    const element = ns.make("div", "tensor-histogram"), canvas = ns.make("canvas"), legend = ns.make("div", "tensor-legend");
    const says = `${kind.title}: histograms over time. Left and right choose a step, up and down a magnitude`;
    for (const [name, text] of Object.entries({ role: "slider", tabindex: "0", "aria-label": says, "aria-valuemin": "0" })) {
      ns.setAttribute(canvas, name, text);
    }
    legend.append(ns.make("span", "tensor-when"), ...axis().formats.map(() => {
      const line = ns.make("span");
      line.append(ns.make("i", "tensor-swatch"), ns.make("span"));
      return line;
    }));
    const title = ns.make("h4");
    title.append(ns.make("span"), ns.make("small"));
    element.append(title, canvas, legend);
    const one = { kind, element, canvas, legend, column: null, bin: null };
    canvas.addEventListener("pointermove", (event) => point(one, event));
    canvas.addEventListener("pointerleave", () => leave(one));
    canvas.addEventListener("keydown", (event) => move(one, event));
    canvas.addEventListener("blur", () => leave(one));
    return one;
  }

  function leave(one) {
    one.column = one.bin = null;
    ns.byId("tooltip").hidden = true;
    ns.later(redraw);
  }

  function point(one, event) {
    const place = one.canvas.getBoundingClientRect(), g = geometry(one.canvas, one.kind.steps.length);
    const column = Math.floor((event.clientX - place.left - g.left) / g.column);
    if (column < 0 || column >= one.kind.steps.length) return leave(one);
    one.column = column;
    one.bin = binAt(event.clientY - place.top, g);
    const counts = one.kind.counts[column], tooltip = ns.byId("tooltip");
    tooltip.replaceChildren(
      ns.make("b", "", `step ${ns.count(one.kind.steps[column])}`), ns.make("div", "", axis().bins[one.bin]),
      ns.make("div", "", `${ns.count(counts[one.bin])} elements, ${percent(counts[one.bin] / Math.max(1, total(counts)))}`),
    );
    tooltip.hidden = false;
    const left = Math.min(event.clientX + 14, window.innerWidth - tooltip.offsetWidth - 8);
    Object.assign(tooltip.style, { left: left + "px", top: Math.min(event.clientY + 14, window.innerHeight - 80) + "px" });
    ns.later(redraw);
  }

  function move(one, event) {
    const across = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    const up = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    if ((across ?? up) === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const clamp = (value, most) => Math.max(0, Math.min(most, value));
    const counts = one.kind.counts[columnOf(one)];
    if (up) one.bin = clamp((one.bin ?? counts.indexOf(Math.max(...counts))) + up, axis().nan);
    one.column = clamp(columnOf(one) + (across ?? 0) * (event.shiftKey ? FAST : 1), one.kind.steps.length - 1);
    ns.later(redraw);
  }

  // The canvases of the same kinds stay, with what is chosen in them.
  ns.showHistograms = function (kinds) {
    if (shown.map((one) => one.kind.name).join() !== kinds.map((kind) => kind.name).join()) {
      shown = kinds.map(make);
      ns.byId("row-canvases").replaceChildren(...shown.map((one) => one.element));
    }
    shown.forEach((one, at) => {
      one.kind = kinds[at];
      if (one.column >= one.kind.steps.length) one.column = null;
    });
    ns.byId("row-over-time").hidden = !kinds.length;
    ns.later(redraw);
  };

  // For tests and whoever looks under the hood: what is drawn.
  ns.shownHistograms = () => shown.map(({ kind }) => kind);

  ns.startTensorHistograms = function () {
    ns.on("theme", () => ns.later(redraw));
    new ResizeObserver(() => ns.later(redraw)).observe(ns.byId("row-canvases"));
  };
})(window.nanscope);
