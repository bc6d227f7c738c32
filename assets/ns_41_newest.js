// The newest points of the tracks, which the status brings between two pictures (dashboard/live/newest.py): the lines go
// on with them, and are painted anew only where that will not do. The next picture has them itself.
(function (ns) {
  "use strict";

  /** @type {Map<string, { x: number[], y: number[], whole: { x: Values, y: Values } | null, base: Values | null }>} */
  const newest = new Map(); // chart and line -> its points, with its line up to them once it was asked for

  // A line of the picture with what has come since.
  ns.lineWithNewest = function (id, name) {
    const key = `${id}/${name}`, x = ns.array(key + "/line/x"), y = ns.array(key + "/line/y"), more = newest.get(key);
    if (!more) return { x, y };
    if (!more.whole || more.base !== y) Object.assign(more, { whole: { x: [...x, ...more.x], y: [...y, ...more.y] }, base: y });
    return more.whole;
  };

  // Paints what has come since onto a chart; false where all of it has to be painted.
  function goesOn(chart) {
    const painted = ns.painted(chart.id), context = ns.plot(chart.id).querySelector("canvas")?.getContext("2d");
    if (!painted || !context || painted.axis !== ns.axis() || ns.view.smooth || ns.view.clip) return false;
    const { low, high } = painted.scale;
    for (const line of painted.lines) {
      if (!newest.has(`${chart.id}/${line.name}`)) continue;
      if (line.hasDots || !line.x.length) return false;
      const { x, y } = ns.lineWithNewest(chart.id, line.name), from = line.x.length - 1;
      const piece = { ...line, x: x.slice(from), y: y.slice(from) };
      if (x[from] !== line.x[from] || piece.y.some((value) => value < low || value > high)) return false;
      if (piece.x.length < 2) continue;
      ns.paintOn(context, piece, painted);
      Object.assign(line, { x, y });
    }
    return true;
  }

  function draw() {
    for (const id of ns.templates.tracks) {
      const chart = ns.templates.charts.find((each) => each.id === id);
      if (ns.isOnScreen(id) && chart.names.some((name) => newest.has(`${id}/${name}`)) && !goesOn(chart)) ns.drawChart(chart);
    }
  }

  /** @param {Header} header */
  function take(header) {
    if (header.charts) newest.clear();
    if (!header.newest || ns.view.paused || !ns.range) return;
    let end = ns.range[1];
    for (const id of ns.templates.tracks) {
      for (const name of ns.templates.charts.find((chart) => chart.id === id).names) {
        const [x, values] = header.newest[name] ?? [[], []];
        if (!x.length || !ns.array(`${id}/${name}/line/x`).length) continue;
        newest.set(`${id}/${name}`, { x, y: values.map((value) => value ?? NaN), whole: null, base: null });
        end = Math.max(end, x[x.length - 1] + 1);
      }
    }
    // Live the axis ends a little later than the steps; where it does not any more, everything moves.
    if (end - 0.5 > ns.axisRange()[1]) ns.setRange([ns.range[0], end]);
    ns.later(draw);
  }

  ns.startNewest = () => ns.on("message", take);
})(window.nanscope);
