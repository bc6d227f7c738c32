// The events below the tracks: a lane for each severity, near ones as one marker with their number. A marker is a
// button, so that keys reach it, and its click opens the first of its events.
(function (ns) {
  "use strict";

  const NEAR_PX = 28; // events of a lane closer than this share a marker
  const DIGIT_PX = 7; // of each digit of a count after the second
  const MOST_NAMED = 5;
  const SIGNS = ["\u25c6", "\u25b2", "\u25cf"]; // as in dashboard/page/views/event_facts.py
  const NAMES = ["critical", "warning", "info"];
  const buttons = new Map(); // key of a marker -> its button

  // Events of one lane, by step, as markers: {x, rows}.
  function markersOf(rows, box, axis) {
    const found = [];
    const digits = String(rows.length).length;
    const near = NEAR_PX + DIGIT_PX * Math.max(0, digits - 2);
    for (const row of rows) {
      const x = axis.of(row.step) * box.w;
      const before = found[found.length - 1];
      if (before && x - before.x <= near) before.rows.push(row);
      else found.push({ x, rows: [row] });
    }
    return found;
  }

  function make() {
    const button = ns.make("button", "ns-marker");
    button.type = "button";
    button.append(ns.make("span", "ns-marker-sign"), ns.make("span", "ns-marker-count"));
    button.addEventListener("click", () => ns.openEvent(button.dataset.event));
    button.addEventListener("mousedown", (event) => event.stopPropagation());
    return button;
  }

  /** @returns {[key: string, button: HTMLButtonElement]} */
  function place(marker, lane, box) {
    const [first] = marker.rows, count = marker.rows.length;
    const key = `${lane} ${first.id}`;
    const button = buttons.get(key) || make();
    button.dataset.event = first.id;
    button.dataset.severity = NAMES[lane];
    Object.assign(button.style, { left: box.l + marker.x + "px", top: box.t + (lane + 0.5) * (box.h / NAMES.length) + "px" });
    ns.setText(button.firstChild, SIGNS[lane]);
    ns.setText(button.lastChild, count > 1 ? ns.count(count) : "");
    button.classList.toggle("ns-marker-open", marker.rows.some((row) => row.id === ns.view.event));
    const rest = count > MOST_NAMED ? `and ${ns.count(count - MOST_NAMED)} more` : "";
    const lines = marker.rows.slice(0, MOST_NAMED).map((row) => row.message);
    ns.setTitle(button, ...lines, rest);
    ns.setAttribute(button, "aria-label", `${NAMES[lane]}, step ${ns.count(first.step)}: ${first.message}${count > 1 ? `, and ${ns.count(count - 1)} more` : ""}`);
    return [key, button];
  }

  function drawLanes(lanes) {
    const names = ns.byId("timeline-names").children;
    lanes.forEach((rows, lane) => ns.setText(names[lane].lastChild, rows.length ? ns.count(rows.length) : ""));
  }

  ns.drawTimeline = function () {
    const box = ns.boxOf("timeline");
    if (!box || !ns.range) return;
    const axis = ns.axis(), colours = ns.theme().colours;
    const context = ns.canvasOf("timeline");
    context.font = ns.FONT;
    ns.paintFoot(context, { box, colours, xTicks: ns.axisTicks(box.w), hasFoot: true });
    const rows = ns.eventRows().filter((row) => row.step >= axis.first && row.step <= axis.last);
    const lanes = NAMES.map((_, lane) => rows.filter((row) => row.severity_order === lane).sort((a, b) => a.step - b.step));
    const placed = new Map(lanes.flatMap((own, lane) => markersOf(own, box, axis).map((marker) => place(marker, lane, box))));
    const holder = ns.byId("timeline-markers");
    for (const [key, button] of buttons) if (!placed.has(key)) button.remove();
    for (const [key, button] of placed) if (!buttons.has(key)) holder.append(button);
    buttons.clear();
    for (const [key, button] of placed) buttons.set(key, button);
    drawLanes(lanes);
  };

  ns.startTimeline = function () {
    const redraw = () => ns.later(ns.drawTimeline);
    for (const name of ["range", "rows", "theme", "axis", "view", "tab"]) ns.on(name, redraw);
    ns.on("message", (header) => { if (header.charts) redraw(); });
    ns.on("resized", (id) => { if (id === "timeline") redraw(); });
  };
})(window.nanscope);
