// The view Ranks below and beside its picture: the picked rank against the median and the other ranks as lines, the step
// axis, the times of each rank as bars; and when all of it is drawn.
(function (ns) {
  "use strict";

  const BAND = 8; // pixels of the band of NaN at the top of the track
  const LOG_RATIO = 4; // the scale is logarithmic where values differ by more
  const shown = ns.ranks;
  let observed = false;

  function begin(canvas, height) {
    const scale = window.devicePixelRatio || 1, width = canvas.clientWidth;
    canvas.width = Math.max(1, Math.round(width * scale));
    canvas.height = Math.max(1, Math.round(height * scale));
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    return { context, width, height };
  }

  const share = (step) => ns.axis().of(step);
  const middleOf = (column) => ns.rankColumns()[column] + (shown.fields.stepsPerColumn - 1) / 2;

  // Smallest and largest finite value of each column over the ranks but the picked one.
  function others(at) {
    const count = ns.rankColumns().length;
    const low = new Float64Array(count).fill(NaN), high = new Float64Array(count).fill(NaN);
    const values = ns.array("ranks/values"), stride = shown.fields.ranks.length + 1;
    for (let column = 0; column < count; column++) {
      for (let other = 0; other < stride - 1; other++) {
        const value = values[column * stride + 1 + other];
        if (other === at || !Number.isFinite(value)) continue;
        if (!(low[column] <= value)) low[column] = value;
        if (!(high[column] >= value)) high[column] = value;
      }
    }
    return { low, high };
  }

  // Maps values to pixels: on a log scale where all are positive and differ much, or the user wants it.
  function scaleOf(series, height) {
    const finite = series.flatMap((each) => [...each]).filter(Number.isFinite);
    if (!finite.length) return null;
    let low = finite.reduce((a, b) => Math.min(a, b)), high = finite.reduce((a, b) => Math.max(a, b));
    const isLog = low > 0 && (high > LOG_RATIO * low || ns.view.log);
    const change = isLog ? Math.log10 : (value) => value;
    if (low === high) { low -= Math.abs(low) / 2 || 1; high += Math.abs(high) / 2 || 1; }
    const bottom = change(low > 0 || !isLog ? low : high / 2), top = change(high);
    const yOf = (value) => BAND + 4 + (1 - (change(value) - bottom) / (top - bottom)) * (height - BAND - 10);
    const middle = isLog ? 10 ** ((bottom + top) / 2) : (bottom + top) / 2;
    return { yOf, ticks: [high, middle, low] };
  }

  function strokeLine(context, width, yOf, valueAt, colour) {
    Object.assign(context, { strokeStyle: colour, lineWidth: 1.25 });
    context.beginPath();
    let isDown = false;
    for (let column = 0; column < ns.rankColumns().length; column++) {
      const value = valueAt(column);
      const x = share(middleOf(column)) * width, y = yOf(value);
      if (Number.isFinite(value)) context[isDown ? "lineTo" : "moveTo"](x, y);
      isDown = Number.isFinite(value);
      if (column % ns.LINE_PART || !isDown) continue;
      context.stroke();
      context.beginPath();
      context.moveTo(x, y);
    }
    context.stroke();
  }

  function fillBand(context, width, yOf, { low, high }, colour) {
    context.fillStyle = colour;
    context.globalAlpha = 0.18;
    const half = shown.fields.stepsPerColumn / 2;
    for (let column = 0; column < low.length; column++) {
      if (!Number.isFinite(low[column])) continue;
      const left = share(middleOf(column) - half) * width, right = share(middleOf(column) + half) * width;
      context.fillRect(left, yOf(high[column]), Math.max(1, right - left), Math.max(1, yOf(low[column]) - yOf(high[column])));
    }
    context.globalAlpha = 1;
  }

  function drawTrack() {
    const canvas = ns.byId("ranks-line");
    const { context, width, height } = begin(canvas, canvas.clientHeight);
    const { series, severities, nan } = ns.theme().colours;
    const at = ns.rankAt(ns.view.rank), count = ns.rankColumns().length;
    const mine = Array.from({ length: count }, (_, column) => (at < 0 ? NaN : ns.rankValue(at, column)));
    const median = Array.from({ length: count }, (_, column) => ns.rankMedian(column));
    const band = others(at);
    const scale = scaleOf([mine, median, band.low, band.high], height);
    ns.byId("ranks-ticks").replaceChildren(...(scale ? scale.ticks : []).map((value) => {
      const tick = ns.make("span", "", ns.quantity(value, shown.fields.unit, 2));
      tick.style.top = scale.yOf(value) + "px";
      return tick;
    }));
    if (scale) {
      fillBand(context, width, scale.yOf, band, series[0]);
      strokeLine(context, width, scale.yOf, (column) => median[column], series[0]);
      strokeLine(context, width, scale.yOf, (column) => mine[column], severities[0]);
    }
    context.fillStyle = nan;
    const half = shown.fields.stepsPerColumn / 2;
    mine.forEach((value, column) => {
      if (!Number.isNaN(value) && value !== Infinity) return;
      const left = Math.floor(share(middleOf(column) - half) * width);
      context.fillRect(left, 0, Math.max(2, Math.ceil(share(middleOf(column) + half) * width) - left), BAND);
    });
  }

  // What the picked rank has at the crosshair, else at the newest column, beside the median over ranks.
  function drawSide() {
    const column = ns.rankColumn(), at = ns.rankAt(ns.view.rank);
    const { fields } = shown, label = ns.byId("ranks-select").selectedOptions[0]?.textContent || "";
    const value = at < 0 || column < 0 ? -Infinity : ns.rankValue(at, column);
    const median = column < 0 ? NaN : ns.rankMedian(column);
    const distance = ns.rankDistanceText(ns.rankDistance(value, median));
    const said = /** @type {[HTMLElement, string][]} */ ([
      [ns.byId("ranks-track-name"), label],
      [ns.byId("ranks-own"), ns.rankValueText(value)], [ns.byId("ranks-own-name"), `rank ${ns.view.rank}`],
      [ns.byId("ranks-median"), Number.isFinite(median) ? ns.rankValueText(median) : "\u2013"],
      [ns.byId("ranks-distance"), distance || "\u2013"],
      [ns.byId("ranks-at"), column < 0 ? "" : ns.rankSteps(column)],
    ]);
    for (const [element, text] of said) ns.setText(element, text);
    const { times } = fields, time = (each) => (each === null || each === undefined ? "\u2013" : ns.quantity(each, "s"));
    ns.setText(ns.byId("ranks-time-name"), times.what);
    ns.setText(ns.byId("ranks-time-own"), time(times.p50[at]));
    ns.setText(ns.byId("ranks-time-high"), time(times.p95[at]));
    ns.setText(ns.byId("ranks-time-median"), time(times.median));
    ns.setText(ns.byId("ranks-side-host"), at < 0 ? "" : fields.hosts[at] || "host unknown");
    const text = `${label} of rank ${ns.view.rank} and the median over ranks, over steps; now ${ns.rankValueText(value)}`;
    ns.setAttribute(ns.byId("ranks-line"), "aria-label", text);
  }

  function drawTimes() {
    const canvas = ns.byId("ranks-times");
    if (!canvas.clientWidth) return;
    const seen = ns.rankWindow();
    canvas.style.height = seen.height + "px";
    const { context, width } = begin(canvas, seen.height);
    const { p50, p95 } = shown.fields.times, { series, muted, severities } = ns.theme().colours;
    const known = [...p50, ...p95].filter((value) => value !== null);
    const ends = ns.byId("ranks-times-ends");
    ns.setText(ends, "");
    if (!known.length) return;
    const low = Math.min(...known) * 0.98, high = Math.max(...known) * 1.02, room = width - 56;
    const xOf = (value) => 8 + ((value - low) / (high - low || 1)) * room;
    const [from, to] = [Math.min(...known), Math.max(...known)].map((value) => ns.quantity(value, "s", 3));
    const isSameUnit = from.split(" ")[1] === to.split(" ")[1];
    ns.setText(ends, `${isSameUnit ? from.split(" ")[0] : from}\u2013${to}`);
    for (const row of ns.rankRows()) {
      if (p50[row.at] === null) continue;
      const y = row.top - seen.top + row.height / 2, mark = ns.rankMark(row.rank), isSlow = mark?.kind === "slow";
      context.strokeStyle = muted;
      context.lineWidth = Math.max(1, Math.min(2, row.height / 4));
      context.beginPath();
      context.moveTo(xOf(p50[row.at]), y);
      context.lineTo(xOf(p95[row.at]), y);
      context.stroke();
      context.fillStyle = isSlow ? severities[1] : series[0];
      const radius = Math.max(1, Math.min(3, row.height / 2 - 0.5));
      context.beginPath();
      context.arc(xOf(p50[row.at]), y, isSlow ? Math.max(3, radius) : radius, 0, 7);
      context.fill();
      if (isSlow) context.fillText(`rank ${row.rank}`, Math.min(xOf(p95[row.at]) + 5, width - 46), y + 4);
    }
  }

  function placeLine(id, step) {
    const at = step === null ? -1 : share(step), line = ns.byId(id);
    line.hidden = at < 0 || at > 1;
    if (!line.hidden) line.style.left = at * 100 + "%";
  }

  function drawLines() {
    const bad = shown.fields.remarks.find((remark) => remark.kind === "bad");
    placeLine("ranks-origin", bad ? bad.step - 0.5 : null);
    placeLine("ranks-crosshair", ns.crosshair ? ns.crosshair() : null);
  }

  function drawNothing() {
    const ranks = (ns.runs || []).find((run) => run.run === ns.view.run)?.ranks.length ?? 0;
    const isKnown = ranks > 1 && shown.fields === null;
    ns.setText(ns.byId("ranks-empty"), isKnown ? "Reading the ranks\u2026" : "This run has one rank: there is nothing to compare.");
    const isEmpty = shown.fields === null || ranks < 2;
    ns.byId("ranks-empty").hidden = !isEmpty;
    ns.byId("ranks").hidden = isEmpty;
    return isEmpty;
  }

  ns.drawRanks = function () {
    if (!ns.isRanks() || !ns.templates || drawNothing() || !ns.range) return;
    const body = ns.byId("ranks-body"), canvas = ns.byId("ranks-canvas");
    if (!observed) {
      observed = true;
      new ResizeObserver(() => ns.later(ns.drawRanks)).observe(body);
      body.addEventListener("scroll", () => ns.later(scrolled), { passive: true });
    }
    ns.layRanks(body.clientHeight - 2);
    canvas.parentElement.style.height = shown.height + "px";
    if (!canvas.clientWidth) return;
    ns.drawRankTools();
    ns.drawRankRemarks();
    scrolled();
    ns.drawRankAxis();
    drawTrack();
  };

  // What depends on the rows that are in the window.
  function scrolled() {
    if (!ns.isRanks() || !shown.fields || !shown.rows.length) return;
    ns.paintRanks(ns.byId("ranks-canvas"));
    drawTimes();
    ns.drawRankMap();
    follow(true);
  }

  // What moves with the crosshair.
  function follow(isWhole = false) {
    if (!ns.isRanks() || !shown.fields || !shown.rows.length) return;
    ns.drawRankRows(isWhole);
    drawSide();
    drawLines();
  }

  ns.startRanks = function () {
    const moved = () => follow();
    ns.startRankRows();
    ns.startRankTools();
    ns.startRankMap();
    ns.on("message", (header) => {
      if (!header.charts) return;
      shown.fields = header.ranks || null;
      if (ns.isRanks()) ns.later(ns.drawRanks);
    });
    let picked = ns.view.rank;
    ns.on("view", () => {
      if (ns.view.rank === picked) return;
      picked = ns.view.rank;
      if (ns.isRanks() && shown.rows.length) ns.scrollToRank(picked);
    });
    for (const name of ["range", "theme", "tab", "view"]) ns.on(name, () => ns.isRanks() && ns.later(ns.drawRanks));
    ns.on("crosshair", () => ns.isRanks() && ns.later(moved));
  };
})(window.nanscope);
