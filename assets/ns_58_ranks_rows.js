// The rows of the view Ranks: a list beside the picture, whose rows are picked by pointer and keys. It is the picture's
// alternative: each row says its value, the median and the distance. Only the rows in the window have elements.
(function (ns) {
  "use strict";

  const LINE = 14; // pixels that a label takes
  const shown = ns.ranks;
  let active = null; // rank under the keys

  const host = ns.rankHost = (row) => row.host || "host unknown";
  const stateOf = (rank) => {
    const ranks = (ns.runs || []).find((each) => each.run === ns.view.run)?.ranks;
    return (ranks?.[rank]?.rank === rank ? ranks[rank] : ranks?.find((each) => each.rank === rank))?.state ?? null;
  };
  const markOf = ns.rankMark = (rank) => shown.fields.remarks.find((remark) => remark.ranks.includes(rank) && remark.severity !== "none");
  const MARKS = ns.rankMarks = { bad: "\u25c6", slow: "\u25b2", far: "\u25b2" };
  const WORDS = { bad: "NaN or Inf first", slow: "slower than the others", far: "far from the median" };
  const isPresent = (row) => shown.fields.present[row.at];

  // What all rows of a column have in common: its steps, and its median with the number of ranks that it is of.
  let common = { values: null, column: -1 };
  function commonOf(column) {
    const values = ns.array("ranks/values");
    if (common.values === values && common.column === column) return common;
    const stride = shown.fields.ranks.length + 1, median = ns.rankMedian(column);
    const ranks = values.subarray(column * stride + 1, (column + 1) * stride).filter(Number.isFinite).length;
    const step = ns.rankColumns()[column], size = shown.fields.stepsPerColumn;
    const steps = size > 1 ? `steps ${ns.count(step)}\u2013${ns.count(step + size - 1)}` : `step ${ns.count(step)}`;
    const middle = ranks ? `, median ${ns.rankValueText(median)} of ${ns.count(ranks)} rank${ranks === 1 ? "" : "s"}` : "";
    common = { values, column, median, steps, middle };
    return common;
  }
  const stepsOf = ns.rankSteps = (column) => commonOf(column).steps;

  // "2.08 (largest of 64 steps), median 0.341 of 63 ranks, x6.1"
  ns.rankWords = wordsAt;
  function wordsAt(row, column) {
    if (!isPresent(row)) return "this rank has sent nothing";
    if (column < 0) return "not measured";
    const value = ns.rankValue(row.at, column), { median, middle } = commonOf(column);
    const text = ns.rankValueText(value);
    if (value === -Infinity) return text;
    const pooled = shown.fields.pooled ? ` (${shown.fields.pooled})` : "";
    const distance = ns.rankDistanceText(ns.rankDistance(value, median));
    return `${text}${pooled}${middle}${distance ? ", " + distance : ""}`;
  }

  function timeWords(row) {
    const { p50, p95, what } = shown.fields.times;
    return p50[row.at] === null ? "" : `${what} ${ns.quantity(p50[row.at], "s")}, 95 % below ${ns.quantity(p95[row.at], "s")}`;
  }

  function optionLabel(row, column) {
    const mark = markOf(row.rank);
    const state = stateOf(row.rank);
    const parts = [
      `rank ${row.rank} on ${host(row)}`, mark ? WORDS[mark.kind] : "", state && state !== "running" ? state : "",
      column >= 0 ? `${stepsOf(column)}: ${wordsAt(row, column)}` : wordsAt(row, column), timeWords(row),
    ];
    return parts.filter(Boolean).join("; ");
  }

  // Labels where there is room: first what is picked or stands out, then hosts, then single ranks.
  function labelled() {
    const isWide = shown.rows[0]?.height >= LINE;
    const wish = (row) => (row.rank === ns.view.rank || row.rank === active ? 3 : markOf(row.rank) ? 2 : row.isNew ? 1 : isWide ? 0 : -1);
    const taken = [];
    const found = new Map(); // rank -> whether it is labelled as the first of its host
    for (const row of ns.rankRows().sort((a, b) => wish(b) - wish(a) || a.top - b.top)) {
      const isHost = row.isNew && !isWide && wish(row) === 1;
      const middle = isHost ? row.top + LINE / 2 : row.top + row.height / 2;
      const room = isWide ? row.height : LINE;
      if (wish(row) < 0 || taken.some((at) => Math.abs(at - middle) < room - 0.5)) continue;
      taken.push(middle);
      found.set(row.rank, { isHost, top: Math.max(0, Math.min(shown.height - LINE, middle - LINE / 2)) });
    }
    return found;
  }

  const sizeOf = (name) => shown.fields.hosts.filter((each) => each === name).length;

  function label(row, place, column) {
    const mark = markOf(row.rank);
    const element = ns.make("span", "ns-rank-label");
    element.style.top = place.top + "px";
    if (mark && !place.isHost) {
      element.dataset.kind = mark.kind;
      element.append(ns.make("span", "ns-rank-mark", MARKS[mark.kind]));
    }
    const value = column < 0 ? -Infinity : ns.rankValue(row.at, column);
    const distance = column < 0 ? NaN : ns.rankDistance(value, ns.rankMedian(column));
    const size = sizeOf(row.host);
    const where = isPresent(row) ? host(row) : "nothing sent";
    const text = place.isHost ? `${where}${size > 1 ? ` \u00b7 ${ns.count(size)} ranks` : ""}` : `rank ${row.rank}`;
    element.append(ns.make("span", "ns-rank-name", text));
    if (!place.isHost && row.isNew) element.append(ns.make("span", "ns-rank-host", where));
    const isBad = Number.isNaN(value) || value === Infinity;
    const short = isBad ? ns.rankValueText(value) : ns.rankDistanceText(distance) || "\u2013";
    if (!place.isHost) element.append(ns.make("span", "ns-rank-distance" + (isBad ? " ns-bad" : ""), short));
    return element;
  }

  let built = "";

  // With the crosshair only what is seen or read out changes.
  ns.drawRankRows = function (isWhole = true) {
    const list = ns.byId("ranks-list"), column = ns.rankColumn();
    const rows = ns.rankRows();
    const key = rows.map((row) => `${row.rank},${row.top},${row.height}`).join();
    if (key !== built) {
      built = key;
      isWhole = true;
      list.replaceChildren(...rows.map((row) => {
        const option = ns.make("div", "ns-rank-row");
        option.id = `ranks-row-${row.rank}`;
        option.setAttribute("role", "option");
        option.setAttribute("aria-setsize", String(shown.rows.length));
        option.setAttribute("aria-posinset", String(shown.rows.indexOf(row) + 1));
        Object.assign(option.style, { top: row.top + "px", height: row.height + "px" });
        return option;
      }));
    }
    const places = labelled();
    rows.forEach((row, index) => {
      const option = list.children[index];
      ns.setAttribute(option, "aria-selected", String(row.rank === ns.view.rank));
      if (isWhole || row.rank === active) ns.setAttribute(option, "aria-label", optionLabel(row, column));
      option.classList.toggle("ns-active", row.rank === active);
      const place = places.get(row.rank);
      if (place) place.top -= row.top;
      option.replaceChildren(...(place ? [label(row, place, column)] : []));
    });
    if (rows.some((row) => row.rank === active)) list.setAttribute("aria-activedescendant", `ranks-row-${active}`);
    else list.removeAttribute("aria-activedescendant");
    list.style.height = shown.height + "px";
    const picked = shown.rows.find((row) => row.rank === ns.view.rank), frame = ns.byId("ranks-picked");
    frame.hidden = !picked;
    if (picked) Object.assign(frame.style, { top: picked.top - 1 + "px", height: picked.height + 2 + "px" });
  };

  // The rows as a table (ns_83_values.js): rank and host, and what it has at a step.
  ns.rankCells = (step) => shown.rows.map((row) => [`rank ${row.rank}, ${host(row)}`, wordsAt(row, ns.rankColumnAt(step))]);

  ns.pickRank = pick;
  function pick(rank) {
    active = rank;
    if (rank !== ns.view.rank && shown.fields.present[ns.rankAt(rank)]) ns.change({ rank });
    else ns.drawRanks();
  }

  function step(by) {
    const column = ns.rankColumn(), count = ns.rankColumns().length;
    const next = Math.max(0, Math.min(count - 1, (column < 0 ? count - 1 : column) + by));
    ns.setCrosshair(ns.rankColumns()[next]);
    const row = shown.rows.find((each) => each.rank === active) || shown.rows[0];
    ns.setText(ns.byId("announcer"), `${stepsOf(next)}, rank ${row.rank}: ${wordsAt(row, next)}`);
  }

  function move(event) {
    const last = shown.rows.length - 1, screen = Math.max(8, ns.rankRows().length - 1);
    const at = Math.max(0, shown.rows.findIndex((row) => row.rank === (active ?? ns.view.rank)));
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: last, PageDown: at + screen, PageUp: at - screen }[event.key];
    const side = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!shown.fields || event.ctrlKey || event.metaKey || event.altKey) return;
    if (to !== undefined) active = shown.rows[Math.max(0, Math.min(last, active === null ? at : to))].rank;
    else if (side) step(side * (event.shiftKey ? 10 : 1));
    else if (event.key === "Enter" || event.key === " ") pick(active ?? ns.view.rank);
    else return;
    event.preventDefault();
    ns.scrollToRank(active);
    ns.drawRanks();
  }

  ns.startRankRows = function () {
    const list = ns.byId("ranks-list");
    list.addEventListener("keydown", move);
    list.addEventListener("focus", () => { active = active ?? ns.view.rank; ns.drawRanks(); });
    list.addEventListener("click", (event) => {
      const row = ns.rankRowAt(event.clientY - list.getBoundingClientRect().top);
      if (row) pick(row.rank);
    });
  };
})(window.nanscope);
