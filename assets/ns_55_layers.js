// The view Layers around the heatmap's canvas: tools above it, the tree of names at its left, values and sparklines
// at its right. The tree scrolls by whole lines, and the canvas shows the lines that the tree does.
(function (ns) {
  "use strict";

  const map = ns.heatmap;
  const LINE_PX = 15;
  const MOST_PX = 22;
  const HEAD_PX = 68, FOOT_PX = 22;
  /** @type {LayersLine[]} */
  let lines = [], first = 0, count = 0, height = LINE_PX; // all lines; those on screen
  let treeWidth = 0; // without its scrollbar
  let stuck = 0; // pinned lines that stay on screen while the rest scrolls
  let active = ""; // mark of the line that the keys are at
  /** @type {HTMLInputElement} */
  let input = null;

  const cardWidth = () => ns.plot("heatmap").clientWidth;
  const widths = () => ({ hasValues: cardWidth() >= 640, hasSparks: cardWidth() >= 900 });
  ns.layersWidths = widths;

  // Room around the canvas, in pixels.
  ns.layersMargin = function () {
    const { hasValues, hasSparks } = widths();
    return { l: hasValues ? 264 : 140, r: hasSparks ? 196 : hasValues ? 84 : 12, t: HEAD_PX, b: FOOT_PX };
  };

  // A group that is pinned as a row is there twice.
  const markOf = (line) => (line.isPinned ? "pinned " : "") + line.path;
  const indexOf = (at) => (at < stuck ? at : first + at); // of a line on screen among all

  ns.visibleLines = () => [...lines.slice(0, stuck), ...lines.slice(first + stuck, first + count)];
  ns.linesHeight = () => Math.round(count * height); // nothing is drawn below the last line
  ns.lineAt = (at) => lines[indexOf(at)] ?? null;

  // Which lines fit, from where the tree has been scrolled to; `map.shown` has the first row of each.
  ns.chooseLines = function (box) {
    lines = ns.layersLines();
    const fits = Math.max(1, Math.floor(box.h / LINE_PX));
    count = Math.min(lines.length, fits);
    stuck = Math.min(lines.filter((line) => line.isPinned).length, count >> 1); // the rest has half of the room, at least
    height = lines.length > fits ? box.h / fits : Math.min(MOST_PX, box.h / Math.max(1, lines.length));
    const tree = ns.byId("layers-tree");
    Object.assign(tree.style, { top: box.t + "px", height: box.h + "px", width: box.l - 1 + "px" });
    ns.byId("layers-spacer").style.height = lines.length * height + "px";
    treeWidth = tree.clientWidth;
    first = Math.max(0, Math.min(lines.length - count, Math.round(tree.scrollTop / height)));
    map.shown = ns.visibleLines().map((line) => line.rows[0]);
  };

  function valueText(code) {
    if (code === undefined || code === 0) return "\u2013";
    if (code < 4) return ["", "NaN", "Inf", "NaN, Inf"][code];
    return ns.quantity(ns.codeValue(code), ns.statistic().unit);
  }

  const idOf = (at) => "layers-line-" + indexOf(at);

  // For the mouse; keys pin with Shift+Enter.
  function pin(line) {
    const mark = ns.make("span", "ns-line-pin", ns.view.pinnedRows.includes(line.path) ? "unpin" : "pin");
    mark.setAttribute("aria-hidden", "true");
    return mark;
  }

  /** @param {LayersLine} line @param {number} at @param {string} value */
  function lineElement(line, at, value) {
    const item = ns.make("div", "ns-line");
    item.id = idOf(at);
    item.dataset.at = String(indexOf(at));
    Object.assign(item.style, { top: at * height + "px", height: height + "px", lineHeight: height + "px" });
    item.style.paddingLeft = 16 + 12 * line.depth + "px";
    const attributes = {
      role: "treeitem", "aria-level": line.depth + 1, "aria-posinset": indexOf(at) + 1, "aria-setsize": lines.length,
      "aria-selected": String(markOf(line) === active),
      "aria-label": `${line.path || "(root)"}, ${value}${line.isPinned ? ", pinned" : ""}`,
    };
    if (line.canOpen) attributes["aria-expanded"] = String(line.isOpen);
    for (const [name, text] of Object.entries(attributes)) ns.setAttribute(item, name, String(text));
    ns.setTitle(item, line.path || "(root)");
    const arrow = ns.make("span", "ns-line-arrow", line.canOpen ? (line.isOpen ? "\u25be" : "\u25b8") : "");
    // A long name loses its beginning: layers differ at the end.
    const name = ns.make("span", "ns-line-name");
    const text = ns.make("bdi", "", line.label);
    text.dir = "ltr";
    name.append(text);
    item.append(arrow, name);
    if (ns.canPin(line)) item.append(pin(line));
    item.append(ns.make("span", "ns-line-count", line.isParameter ? "" : ns.count(line.tensors)));
    const kinds = { "ns-line-pinned": line.isPinned, "ns-line-group": line.isGroup, "ns-origin-row": ns.isOrigin(line.path, line.isGroup && !line.isOpen) };
    for (const [kind, isSo] of Object.entries(kinds)) item.classList.toggle(kind, isSo);
    return item;
  }

  function drawLines() {
    const column = ns.layersColumn();
    const visible = ns.visibleLines();
    const values = visible.map((line) => valueText(ns.lineCodes(line)[column]));
    ns.byId("layers-lines").replaceChildren(...visible.map((line, at) => lineElement(line, at, values[at])));
    const at = visible.findIndex((line) => markOf(line) === active);
    const tree = ns.byId("layers-tree");
    if (at >= 0) tree.setAttribute("aria-activedescendant", idOf(at));
    else tree.removeAttribute("aria-activedescendant");
    ns.drawLayersValues(values, height, column);
    ns.byId("layers-head").style.width = treeWidth - 24 + "px";
  }

  function short(code) {
    return ns.quantity(ns.codeValue(code), ns.statistic().unit, 2);
  }

  function drawTools() {
    const { filter, sort, scale, folded } = ns.view;
    if (input.value !== filter && document.activeElement !== input) input.value = filter;
    const error = ns.layersProblem();
    ns.setText(ns.byId("layers-error"), error);
    ns.byId("layers-error").hidden = !error;
    ns.setAttribute(input, "aria-invalid", String(error !== ""));
    const [matched, all] = map.matched;
    ns.setText(ns.byId("layers-count"), filter ? `${ns.count(matched)} of ${ns.count(all)}` : ns.count(all));
    ns.byId("layers-sort").value = sort;
    for (const button of ns.byId("layers-scales").children) {
      ns.setAttribute(button, "aria-pressed", String(button.dataset.scale === scale));
    }
    ns.setText(ns.byId("layers-fold"), folded.includes("*") ? "unfold all" : "fold all");
    if (ns.isFlow()) return;
    const words = ns.scaleWords(short);
    const legend = ns.byId("heatmap-scale");
    legend.hidden = words === null;
    if (!words) return;
    const bar = ns.make("i", "ns-layers-bar");
    bar.style.background = `linear-gradient(to right, ${ns.templates.cividis.join(",")})`;
    legend.removeAttribute("style");
    legend.style.left = ns.heatmapBox().l + "px";
    legend.replaceChildren(ns.make("span", "", words[0]), bar, ns.make("span", "", words[1]), ns.make("span", "", words[2]));
  }

  const redraw = () => ns.isLayers() && ns.later(ns.drawHeatmap);

  /** @param {LayersLine} line */
  function toggle(line) {
    if (!line.canOpen) return;
    if (!line.isGroup) return ns.toggleUnfolded(line.path);
    const { folded } = ns.view;
    const isListed = folded.includes(line.path);
    ns.change({ folded: isListed ? folded.filter((path) => path !== line.path) : [...folded, line.path] });
  }

  /** @param {LayersLine} line */
  function open(line) {
    if (line.isGroup) toggle(line);
    else ns.openRow(line.path);
  }

  // The keys stay at the line, wherever it goes.
  function togglePinned(line) {
    ns.togglePinned(line);
    lines = ns.layersLines();
    const at = lines.findIndex((each) => each.path === line.path);
    if (at >= 0) goTo(at);
  }

  function goTo(at) {
    const next = Math.max(0, Math.min(lines.length - 1, at));
    active = markOf(lines[next]);
    const tree = ns.byId("layers-tree");
    if (next >= stuck && next < first + stuck) tree.scrollTop = (next - stuck) * height;
    if (next >= first + count) tree.scrollTop = (next - count + 1) * height;
    redraw();
  }

  /** @param {KeyboardEvent} event */
  function move(event) {
    if (!lines.length || event.ctrlKey || event.metaKey || event.altKey) return;
    const at = lines.findIndex((line) => markOf(line) === active);
    const line = lines[at];
    const moves = {
      ArrowDown: () => goTo(at + 1), ArrowUp: () => goTo(at - 1), Home: () => goTo(0), End: () => goTo(lines.length - 1),
      PageDown: () => goTo(at + count), PageUp: () => goTo(at - count),
      ArrowRight: () => line && line.canOpen && !line.isOpen && toggle(line),
      ArrowLeft: () => {
        if (line?.canOpen && line.isOpen) toggle(line);
        else if (line?.parent) goTo(lines.findIndex((each) => each.path === line.parent && each.isPinned === line.isPinned));
      },
      Enter: () => line && (event.shiftKey ? togglePinned(line) : open(line)),
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    moves[event.key]();
  }

  /** @param {MouseEvent} event */
  function click(event) {
    const item = event.target.closest(".ns-line");
    const line = item && lines[Number(item.dataset.at)];
    if (!line) return;
    active = markOf(line);
    if (event.target.closest(".ns-line-arrow")) toggle(line);
    else if (event.target.closest(".ns-line-pin")) ns.togglePinned(line);
    else open(line);
    redraw();
  }

  ns.focusFilter = function () {
    ns.chooseTab("layers");
    input.focus();
    input.select();
  };

  function startFilter() {
    input = ns.make("input", "ns-layers-filter");
    Object.assign(input, { id: "layers-filter", type: "text", autocomplete: "off", spellcheck: false, maxLength: 256 });
    input.placeholder = "Filter  /";
    input.setAttribute("aria-describedby", "layers-error");
    ns.byId("layers-filter-place").append(input);
    input.addEventListener("input", () => ns.change({ filter: input.value }));
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      if (input.value) { input.value = ""; ns.change({ filter: "" }); } else input.blur();
    });
  }

  ns.startLayers = function () {
    startFilter();
    const tree = ns.byId("layers-tree");
    tree.addEventListener("scroll", redraw);
    tree.addEventListener("keydown", move);
    tree.addEventListener("click", click);
    ns.plot("heatmap").addEventListener("wheel", (event) => {
      if (!ns.isLayers() || event.ctrlKey || lines.length <= count) return;
      event.preventDefault();
      tree.scrollTop += event.deltaY * (event.deltaMode === 1 ? height : 1);
    }, { passive: false });
    ns.byId("layers-sort").addEventListener("change", () => ns.change({ sort: ns.byId("layers-sort").value }));
    ns.byId("layers-scales").addEventListener("click", (event) => {
      const { scale } = /** @type {HTMLElement} */ (event.target).dataset;
      if (scale !== undefined) ns.change({ scale });
    });
    ns.byId("layers-fold").addEventListener("click", () => ns.change({ folded: ns.view.folded.includes("*") ? [] : ["*"] }));
    ns.on("heatmap", () => { if (ns.isLayers()) { if (!ns.isFlow()) drawLines(); drawTools(); } });
    for (const name of ["view", "crosshair"]) ns.on(name, redraw);
    ns.on("tab", () => {
      ns.byId("heatmap-scale").removeAttribute("style");
      ns.focusRows(map.focus || "");
      ns.later(ns.drawHeatmap);
    });
  };
})(window.nanscope);
