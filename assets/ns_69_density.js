// How many events there were over the whole run: a bar for some steps each, critical below, and what lies in it at the
// pointer. Counts what the search and the chips leave; a click goes to the first of them in the list.
(function (ns) {
  "use strict";

  const BAR_PX = 6, GAP_PX = 1, LEAST_PX = 3;
  const NAMES = ["critical", "warning", "info"]; // by severity_order
  let canvas = null;
  /** @type {EventRow[]} */
  let shown = [];

  // Bars over the steps [0, last], at most so many, of whole steps each: how many events of each severity.
  /** @param {EventRow[]} rows @param {number} last @param {number} most */
  ns.eventDensity = function (rows, last, most) {
    const size = Math.max(1, Math.ceil((last + 1) / Math.max(1, most)));
    const bars = Array.from({ length: Math.ceil((last + 1) / size) }, (_, at) => (
      { first: at * size, last: Math.min(last, (at + 1) * size - 1), counts: [0, 0, 0], id: "", step: Infinity }
    ));
    for (const row of rows) {
      const bar = bars[Math.floor(row.step / size)];
      if (!bar) continue;
      bar.counts[row.severity_order] += row.count;
      if (row.step < bar.step) Object.assign(bar, { id: row.id, step: row.step });
    }
    return bars;
  };

  const total = ({ counts }) => counts.reduce((sum, each) => sum + each, 0);

  function bars() {
    const last = shown.reduce((most, { step }) => Math.max(most, step), ns.newestStep ?? 0);
    return ns.eventDensity(shown, last, Math.floor(canvas.clientWidth / BAR_PX));
  }

  function words({ first, last, counts }) {
    const parts = counts.map((count, order) => count && `${ns.count(count)} ${NAMES[order]}`).filter(Boolean);
    const steps = first === last ? `Step ${ns.count(first)}` : `Steps ${ns.count(first)} to ${ns.count(last)}`;
    return `${steps}: ${parts.length ? parts.join(", ") : "no event"}`;
  }

  function draw() {
    if (!canvas.clientWidth || !ns.templates) return;
    const width = canvas.clientWidth, height = canvas.clientHeight;
    const context = ns.freshContext(canvas, width, height);
    const all = bars(), step = width / Math.max(1, all.length);
    const highest = Math.max(1, ...all.map(total));
    const { severities } = ns.theme().colours;
    all.forEach((bar, at) => {
      // The logarithm: one critical event is still seen beside a thousand warnings.
      const whole = total(bar) && Math.max(LEAST_PX, (height * Math.log1p(total(bar))) / Math.log1p(highest));
      let y = height;
      bar.counts.forEach((count, order) => {
        const part = total(bar) ? (whole * count) / total(bar) : 0;
        const tall = count ? Math.max(LEAST_PX, part) : 0;
        context.fillStyle = severities[order];
        context.fillRect(at * step, y - tall, Math.max(1, step - GAP_PX), tall);
        y -= tall;
      });
    });
    const fullest = all.reduce((a, b) => (total(b) > total(a) ? b : a), all[0]);
    ns.setAttribute(canvas, "aria-label", shown.length
      ? `Events over steps 0 to ${ns.count(all[all.length - 1].last)}. Most of them: ${words(fullest)}` : "Events over steps: none");
  }

  function barAt(event) {
    const all = bars(), box = canvas.getBoundingClientRect();
    return all[Math.max(0, Math.min(all.length - 1, Math.floor(((event.clientX - box.left) / box.width) * all.length)))];
  }

  ns.startDensity = function () {
    canvas = ns.byId("event-density");
    canvas.addEventListener("pointermove", (event) => ns.setTitle(canvas, words(barAt(event))));
    canvas.addEventListener("click", (event) => { const { id } = barAt(event); if (id) ns.showInList(id); });
    ns.on("listed", (rows) => { shown = rows; ns.later(draw); });
    for (const name of ["theme", "tab"]) ns.on(name, () => ns.later(draw));
    new ResizeObserver(() => ns.later(draw)).observe(canvas);
  };
})(window.nanscope);
