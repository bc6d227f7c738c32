// The tools of the view Ranks: what stands out in words, the choice of a statistic and an order, the legend, and the pointer
// over the picture: it reads and picks. Zoom and pan are those of all charts (ns_46_pointer.js).
(function (ns) {
  "use strict";

  const shown = ns.ranks;

  // What stands out, in words; a rank that is named can be picked.
  ns.drawRankRemarks = function () {
    const holder = ns.byId("ranks-said");
    const key = JSON.stringify(shown.fields.remarks);
    if (holder.dataset.key === key) return;
    holder.dataset.key = key;
    holder.replaceChildren(...shown.fields.remarks.map((remark) => {
      const item = /** @type {HTMLButtonElement} */ (ns.make(remark.ranks.length ? "button" : "span", "ns-rank-remark"));
      item.dataset.severity = remark.severity;
      if (remark.kind in ns.rankMarks) item.append(ns.make("span", "ns-rank-mark", ns.rankMarks[remark.kind]));
      item.append(ns.make("span", "", remark.text));
      if (remark.ranks.length) {
        item.type = "button";
        ns.setTitle(item, `Pick rank ${remark.ranks[0]}`);
        item.addEventListener("click", () => {
          ns.pickRank(remark.ranks[0]);
          ns.scrollToRank(remark.ranks[0]);
        });
      }
      return item;
    }));
  };

  function swatch(kind, text) {
    const item = ns.make("span", "ns-legend");
    item.append(ns.make("i", "ns-swatch ns-swatch-" + kind), text);
    return item;
  }

  ns.drawRankTools = function () {
    const { fields } = shown, select = ns.byId("ranks-select");
    if (document.activeElement !== select) select.value = fields.statistic;
    for (const option of select.options) option.hidden = option.disabled = !fields.statistics.includes(option.value);
    for (const button of ns.byId("ranks-order").children) {
      ns.setAttribute(button, "aria-pressed", String(button.dataset.order === ns.view.rankOrder));
    }
    const hosts = new Set(fields.hosts.filter((_, at) => fields.present[at])), count = fields.ranks.length;
    const where = hosts.size === 1 ? `on ${[...hosts][0] || "one host"}` : `on ${ns.count(hosts.size)} hosts`;
    ns.setText(ns.byId("ranks-facts"), `${ns.count(count)} ranks ${where} \u00b7 a click picks the rank everywhere`);
    const bar = ns.make("i", "ns-scale-bar");
    bar.style.background = `linear-gradient(to right, ${ns.templates.cividis.join(",")})`;
    const end = fields.scale === "ratio" ? `\u00d7${fields.scaleEnd} or \u00f7${fields.scaleEnd}` : `\u00b1${ns.significant(fields.scaleEnd)}`;
    ns.byId("ranks-scale").replaceChildren(
      ns.make("span", "", "at the median"), bar, ns.make("span", "", end),
      swatch("nan", "NaN"), swatch("inf", "Inf"), swatch("zero", "zero"), swatch("none", "not measured"),
      ns.make("span", "ns-ranks-pooled", fields.pooled),
    );
    ns.setText(ns.byId("ranks-caption"), fields.caption);
    ns.setText(ns.byId("ranks-times-head"), `${fields.times.what} p50\u2013p95`);
    ns.setTitle(ns.byId("ranks-times-head"), fields.times.note);
  };

  const canvas = () => ns.byId("ranks-canvas");
  const yOf = (event) => event.clientY - canvas().getBoundingClientRect().top + ns.rankWindow().top;
  function hover(event) {
    const row = shown.fields ? ns.rankRowAt(yOf(event)) : null, tooltip = ns.byId("tooltip");
    const at = row ? ns.stepAt(canvas().parentElement, event.clientX) : null;
    tooltip.hidden = at === null;
    if (at === null) return;
    ns.setCrosshair(at);
    showTip(event, row, ns.rankColumnAt(at), at);
  }

  // What a row has at a column, beside the pointer; `at` is the step where there is no such column.
  ns.showRankTip = showTip;
  function showTip(event, row, column, at = column < 0 ? null : ns.rankColumns()[column]) {
    const tooltip = ns.byId("tooltip"), clock = at === null ? null : ns.clockAt(at);
    const steps = column < 0 ? `step ${ns.count(at)}` : ns.rankSteps(column);
    const when = clock ? `${steps} \u00b7 ${clock}` : steps;
    const lines = [ns.make("b", "", `rank ${row.rank} \u00b7 ${ns.rankHost(row)}`), ns.make("div", "", when), ns.make("div", "", ns.rankWords(row, column))];
    const mark = ns.rankMark(row.rank);
    if (mark) lines.push(ns.make("div", "ns-small", mark.text));
    tooltip.replaceChildren(...lines);
    const left = Math.min(event.clientX + 14, window.innerWidth - tooltip.offsetWidth - 8);
    const top = Math.min(event.clientY + 14, window.innerHeight - tooltip.offsetHeight - 8);
    Object.assign(tooltip.style, { left: left + "px", top: top + "px" });
  }

  function leave() {
    ns.byId("tooltip").hidden = true;
    ns.setCrosshair(null);
  }

  function pickAt(event) {
    const row = ns.rankRowAt(yOf(event));
    if (row) ns.pickRank(row.rank);
  }

  ns.startRankTools = function () {
    canvas().addEventListener("click", pickAt);
    canvas().addEventListener("pointermove", hover);
    canvas().addEventListener("pointerleave", leave);
    ns.byId("ranks-select").addEventListener("change", (event) => ns.change({ ranks: event.target.value }));
    ns.byId("ranks-order").addEventListener("click", (event) => {
      const button = event.target.closest("[data-order]");
      if (button) ns.change({ rankOrder: button.dataset.order });
    });
  };
})(window.nanscope);
