// Scales of the charts: where values and steps lie, and which of them get a tick. Numbers in, numbers out.
(function (ns) {
  "use strict";

  const PAD = 0.06; // of the values' range, above and below
  const MOST_DECADES = 24;

  // 1, 2 or 5 times a power of ten, at least `size`.
  function niceStep(size) {
    const power = 10 ** Math.floor(Math.log10(size));
    const share = size / power;
    return power * (share <= 1 ? 1 : share <= 2 ? 2 : share <= 5 ? 5 : 10);
  }

  // Multiples of `step` in [low, high], free of what adding up would leave behind.
  function multiples(low, high, step) {
    const found = [];
    const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
    for (let at = first; at <= last && found.length < 1000; at++) found.push(Number((at * step).toPrecision(12)));
    return found;
  }

  // At most `most` round values in [low, high].
  ns.linearTicks = function (low, high, most) {
    if (!(high > low) || most < 1) return [];
    let step = niceStep((high - low) / most);
    let ticks = multiples(low, high, step);
    while (ticks.length > most) {
      step = niceStep(step * 1.5);
      ticks = multiples(low, high, step);
    }
    return ticks;
  };

  // Powers of ten; where the range has less than two, round values.
  ns.logTicks = function (low, high, most) {
    const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
    if (last - first < 1) return ns.linearTicks(low, high, most).filter((value) => value > 0);
    const apart = Math.max(1, Math.ceil((last - first + 1) / Math.max(1, most)));
    const found = [];
    for (let power = Math.ceil(first / apart) * apart; power <= last; power += apart) found.push(Number("1e" + power)); // 10 ** -5 is not 1e-5
    return found;
  };

  // Whole steps in view, about `most`.
  ns.stepTicks = function (first, last, most) {
    const step = Math.max(1, niceStep((last - first) / Math.max(1, most)));
    return multiples(Math.max(0, first), last, step);
  };

  // Seconds that a clock has marks at.
  const CLOCK_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
  ns.clockTicks = function (first, last, most) {
    const wanted = (last - first) / Math.max(1, most);
    if (wanted < 1) return ns.linearTicks(first, last, most);
    const step = CLOCK_S.find((each) => each >= wanted) ?? 86400 * Math.ceil(wanted / 86400);
    return multiples(first, last, step);
  };

  // As short as the ticks' distance allows: 0.25 among quarters, 25,000, 1e-7.
  ns.tickText = function (value, ticks) {
    if (value === 0) return "0";
    const size = Math.abs(value);
    const apart = ticks.length > 1 ? Math.abs(ticks[1] - ticks[0]) : size;
    // Places behind the point: one more than the distance begins at, and no less than the value itself begins at.
    const own = -Math.floor(Math.log10(size) + 1e-9), places = Math.ceil(-Math.log10(apart) - 1e-9) + 1;
    if (size < 1e-3 || size >= 1e6) {
      const figures = Math.max(3, Math.min(15, places - own + 1));
      return String(Number(value.toPrecision(figures)).toExponential()).replace("e+", "e");
    }
    const text = String(Number(value.toFixed(Math.max(0, Math.min(12, Math.max(places, own))))));
    if (size < 1e4) return text;
    const [whole, rest] = text.split(".");
    return ns.count(Number(whole)) + (rest ? "." + rest : "");
  };

  // A y-scale from `low` at the bottom to `high` at the top: of(value) is 0 to 1, above 1 and below 0 outside.
  ns.yScale = function (low, high, isLog) {
    const at = isLog ? Math.log10 : (value) => value;
    const bottom = at(low), span = at(high) - bottom || 1;
    return { low, high, isLog, of: (value) => (at(value) - bottom) / span };
  };

  // The scale that values need: some room around them; a constant stands in the middle.
  ns.fittedScale = function ({ lowest, positive, highest }, isLog) {
    if (!Number.isFinite(lowest)) return ns.yScale(0, 1, false);
    if (isLog && positive > 0 && highest > 0) {
      const [low, high] = [Math.log10(positive), Math.log10(highest)];
      const pad = Math.max(0.02, PAD * (high - low));
      return ns.yScale(10 ** Math.max(low - pad, high - MOST_DECADES), 10 ** (high + pad), true);
    }
    if (lowest === highest) {
      if (highest > 0) return ns.yScale(0, 2 * highest, false);
      return ns.yScale(lowest - 1, highest + 1, false);
    }
    const pad = PAD * (highest - lowest);
    // What cannot be negative needs no room below zero.
    return ns.yScale(lowest >= 0 ? Math.max(0, lowest - pad) : lowest - pad, highest + pad, false);
  };
})(window.nanscope);
