// Names beside the heatmap, as buttons: a layer unfolds into its parameters, a group of layers opens alone.
// With more rows than fit, names are grouped by module path so that they stay readable.
(function (ns) {
  "use strict";

  const LINE_PX = 12; // also in ns_page.css
  const FEWEST_GROUPS = 6;
  const NARROW = { fewest: 4, letters: 11 }; // on a phone, whose gutter has no room for more

  const prefix = (name, depth) => name.split(".").slice(0, depth).join(".");

  // Groups neighbouring rows by the first `depth` parts of their names.
  function groupsAt(depth) {
    const { rows, kinds, shown } = ns.heatmap;
    const groups = [];
    let layer = "";
    shown.forEach((row, at) => {
      if (kinds[row] !== "parameter") layer = rows[row];
      const isParameter = kinds[row] === "parameter";
      const path = isParameter ? rows[row] : prefix(rows[row], depth);
      const last = groups[groups.length - 1];
      if (last && last.path === path && !isParameter) last.end = at + 1;
      else groups.push({ path, at, end: at + 1, layer, isParameter });
    });
    return groups;
  }

  // The finest grouping that fits; rather too fine, with some names left out, than only a handful.
  function groupRows(height) {
    const names = ns.heatmap.shown.map((row) => ns.heatmap.rows[row]);
    const deepest = Math.max(1, ...names.map((name) => name.split(".").length));
    const isShort = ({ path, isParameter }) => isParameter || path.length <= NARROW.letters;
    let finer = groupsAt(deepest), fitting = null;
    for (let depth = deepest; depth >= 1; depth--) {
      const groups = groupsAt(depth);
      if (groups.length * LINE_PX <= height) {
        if (groups.length < (fitting ? NARROW.fewest : FEWEST_GROUPS)) break;
        fitting ??= groups;
        if (!ns.isNarrow() || groups.every(isShort)) return groups;
      }
      finer = groups;
    }
    return fitting ?? finer;
  }

  // A name too long for its place loses its beginning: layers differ at the end. The title has it whole.
  function label(group) {
    const isGroup = group.end - group.at > 1;
    const button = ns.make("button", "ns-label");
    const text = ns.make("bdi"), name = ns.make("span", "ns-label-name");
    text.dir = "ltr";
    name.append(text);
    button.append(name);
    const isOpen = ns.view.unfolded.includes(group.layer);
    if (group.isParameter) {
      button.classList.add("ns-parameter");
      ns.setText(text, "\u00b7 " + group.path.slice(group.layer ? group.layer.length + 1 : 0));
      button.onclick = () => ns.openRow(group.path);
    } else if (isGroup) {
      ns.setText(text, (group.path || "(root)") + " \u203a");
      ns.setTitle(button, `${group.path || "(root)"}: ${group.end - group.at} ${ns.statistic().of}s. Click to see them alone.`);
      button.onclick = () => { ns.focusRows(group.path); ns.later(ns.drawHeatmap); };
      return button;
    } else if (ns.statistic().of === "module") {
      ns.setText(text, group.layer || "(root)");
      const inside = ns.heatmap.rows.some((name) => name.startsWith(group.layer + "."));
      const isOpening = inside && group.layer !== "" && group.layer !== ns.heatmap.focus;
      const does = isOpening ? ": click to see it and what is inside alone" : ": click for its statistics and histograms";
      ns.setTitle(button, (group.layer || "(root)") + does);
      button.onclick = () => {
        if (!isOpening) return ns.openRow(group.layer);
        ns.focusRows(group.layer);
        ns.later(ns.drawHeatmap);
      };
      return button;
    } else {
      ns.setText(text, (isOpen ? "\u25be " : "\u25b8 ") + (group.layer || "(root)"));
      button.setAttribute("aria-expanded", String(isOpen));
      button.onclick = () => ns.toggleUnfolded(group.layer);
    }
    const what = ": click for its statistics and histograms";
    ns.setTitle(button, group.isParameter ? group.path + what : `${group.layer || "(root)"}: click for its parameters`);
    return button;
  }

  let signature = "";
  let shownGroups = [], values = []; // the groups that have a label, and the places of their values

  // The value of each label at the crosshair's step, else the newest; of a group the largest.
  function drawValues() {
    const column = ns.layersColumn();
    shownGroups.forEach((group, at) => {
      let code = 0;
      for (let line = group.at; line < group.end; line++) {
        code = ns.poolCodes(code, ns.heatRow(ns.heatmap.shown[line])[column] ?? 0);
      }
      ns.setText(values[at], code === 0 ? "" : code < 4 ? (code & 1 ? "NaN" : "Inf") : short(code));
      values[at].classList.toggle("ns-bad", code > 0 && code < 4);
    });
  }

  function drawLabels() {
    const box = ns.heatmapBox();
    const height = box.h / Math.max(1, ns.heatmap.shown.length);
    const key = [box.h, box.t, ns.statistic().id, ns.view.unfolded, ns.heatmap.focus, ns.heatmap.rows.length, ns.heatmap.rows, ns.originName()].join();
    if (key === signature) return;
    signature = key;
    const holder = ns.byId("heatmap-labels");
    holder.style.top = box.t + "px";
    holder.style.height = box.h + "px";
    const half = LINE_PX / 2; // of the first and the last row, too, the whole name is beside the picture
    const middleOf = (group) => Math.max(half, Math.min(box.h - half, ((group.at + group.end) / 2) * height));
    const placed = [];
    const groups = groupRows(box.h);
    for (const group of groups) {
      const isFree = () => !placed.length || middleOf(group) - middleOf(placed[placed.length - 1]) >= LINE_PX;
      // The last one always has its place.
      while (group === groups[groups.length - 1] && !isFree()) placed.pop();
      if (isFree()) placed.push(group);
    }
    values = placed.map(() => ns.make("span", "ns-label-value"));
    shownGroups = placed;
    const buttons = placed.map((group, at) => {
      const middle = middleOf(group);
      const button = label(group);
      button.append(values[at]);
      button.style.top = middle - half + "px";
      button.style.setProperty("--half", ((group.end - group.at) * height) / 2 + "px");
      if (group.end - group.at > 1) button.classList.add("ns-group");
      const isOrigin = ns.heatmap.shown.slice(group.at, group.end).some((row) => ns.isOrigin(ns.heatmap.rows[row], false));
      if (isOrigin) button.classList.add("ns-origin-row");
      return button;
    });
    holder.replaceChildren(...buttons);
  }

  function swatch(kind, text) {
    const item = ns.make("span", "ns-legend");
    item.append(ns.make("i", "ns-swatch ns-swatch-" + kind), text);
    return item;
  }

  // What is shown, chosen among what the run has.
  function drawSelect() {
    const select = ns.byId("heatmap-select");
    const { statistic, statistics } = ns.heatmap.fields;
    if (document.activeElement !== select && select.value !== statistic) select.value = statistic;
    for (const option of select.options) option.hidden = option.disabled = !statistics.includes(option.value);
    for (const group of select.children) group.hidden = [...group.children].every((option) => option.hidden);
  }

  // Beside it: how many rows, the way back from a group, what the special colours mean, what is pooled.
  function drawFacts() {
    const { fields, rows, kinds } = ns.heatmap;
    const focus = ns.isLayers() ? "" : ns.heatmap.focus;
    const { scale, of } = ns.statistic();
    const count = kinds.filter((kind) => kind !== "parameter").length;
    const parts = [ns.make("span", "ns-small", `${scale} \u00b7 ${ns.count(count)} ${of}${count === 1 ? "" : "s"}`)];
    if (focus) {
      const back = ns.make("button", "ns-link", `\u2039 all ${of}s`);
      back.onclick = () => { ns.focusRows(""); ns.later(ns.drawHeatmap); };
      parts.push(back, ns.make("span", "ns-small", focus));
    }
    const right = ns.make("span", "ns-heading-right");
    const note = !fields.hasValues ? "nothing measured in these steps" : fields.note;
    if (note) {
      const small = ns.make("span", "ns-small", note);
      ns.setTitle(small, note);
      right.append(small);
    }
    // From the right; what does not fit is left out whole, the legend before the note.
    right.append(swatch("inf", "Inf"), swatch("nan", "NaN"), swatch("none", "not measured"));
    parts.push(right);
    const key = [fields.statistic, count, focus, note, rows.length].join();
    const holder = ns.byId("heatmap-facts");
    if (holder.dataset.key !== key) {
      holder.dataset.key = key;
      holder.replaceChildren(...parts);
    }
  }

  function short(code) {
    const value = ns.codeValue(code), { unit } = ns.statistic();
    if (unit === "bytes" || unit === "s") return ns.quantity(value, unit, 2);
    return value >= 1e-3 && value < 1e5 ? String(Number(value.toPrecision(2))) : value.toExponential(1);
  }

  // The colour scale and what its ends stand for.
  function drawScale() {
    const { low, high } = ns.heatmap.fields;
    const holder = ns.byId("heatmap-scale");
    holder.hidden = low === null; // nothing positive and finite is on screen
    if (holder.hidden) return;
    const bar = ns.make("i", "ns-scale-bar");
    bar.style.background = `linear-gradient(to right, ${ns.templates.cividis.join(",")})`;
    const top = ns.make("span", "ns-scale-top", short(high));
    const bottom = ns.make("span", "ns-scale-bottom", ns.statistic().isCount ? "0" : short(low));
    holder.replaceChildren(bottom, bar, top);
  }

  ns.startHeatmapRows = function () {
    ns.on("crosshair", () => { if (!ns.isLayers() && ns.heatmap.fields) ns.later(drawValues); });
    ns.byId("heatmap-select").addEventListener("change", () => {
      ns.focusRows("");
      ns.change({ heatmap: ns.byId("heatmap-select").value });
    });
    ns.on("heatmap", () => { if (!ns.isLayers()) { drawLabels(); drawValues(); drawScale(); } drawSelect(); drawFacts(); });
  };
})(window.nanscope);
