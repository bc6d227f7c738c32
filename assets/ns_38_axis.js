// The x-axis that all charts share: from steps to places and back, by step, by the clock or by time since the start.
(function (ns) {
  "use strict";

  const TICK_PX = 110;
  const KINDS = ["", "clock", "relative"]; // in the address; "" is steps
  const PLACES = ["axis-", "ranks-kind-"]; // of the buttons: below the tracks and in the view Ranks
  let started = null; // the run's first second, as the server says

  // The steps of what is shown, [left, right]. Live it ends a little later and grows in jumps: an axis that moves at
  // every step cannot be read; a run's first steps stand at the left of a few empty ones.
  ns.axisRange = function () {
    const [first, end] = ns.range || [0, 0]; // none before a run's first step
    if (ns.view.paused) return [first - 0.5, end - 0.5];
    const jump = 2 ** Math.max(0, Math.floor(Math.log2((end - first) / 16)));
    return [first - 0.5, Math.max(Math.ceil(end / jump) * jump, first + 10) - 0.5];
  };

  // Place of the last knot at or before a number.
  function before(knots, number) {
    let low = 0, high = knots.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (knots[middle] <= number) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  // y at x along knots, with the mean slope beyond both ends.
  function along(xs, ys, x) {
    const last = xs.length - 1;
    const slope = (ys[last] - ys[0]) / (xs[last] - xs[0]);
    if (x <= xs[0]) return ys[0] + (x - xs[0]) * slope;
    if (x >= xs[last]) return ys[last] + (x - xs[last]) * slope;
    const at = before(xs, x);
    return ys[at] + ((x - xs[at]) / (xs[at + 1] - xs[at])) * (ys[at + 1] - ys[at]);
  }

  // Steps and their times, both growing; null where the times of fewer than two steps are known.
  function knots() {
    const steps = ns.array("times/x"), times = ns.array("times/y");
    const xs = [], ys = [];
    for (let at = 0; at < steps.length; at++) {
      const isLater = !xs.length || (steps[at] > xs[xs.length - 1] && times[at] > ys[ys.length - 1]);
      if (isLater && Number.isFinite(times[at])) { xs.push(steps[at]); ys.push(times[at]); }
    }
    return xs.length > 1 ? [xs, ys] : null;
  }

  let held = null, heldKey = null, heldTimes = null; // the axis is asked for by every chart of a frame

  // {first, last} in steps, of(step) -> 0 to 1 from left to right, at(share) -> step, isTime.
  ns.axis = function () {
    const [first, last] = ns.axisRange(), times = ns.array("times/y");
    const key = `${first} ${last} ${ns.view.x}`;
    if (key === heldKey && times === heldTimes) return held;
    heldKey = key;
    heldTimes = times;
    held = { first, last, isTime: false, of: (step) => (step - first) / (last - first), at: (share) => first + share * (last - first) };
    const known = ns.view.x ? knots() : null;
    if (!known) return held;
    const [xs, ys] = known;
    const left = along(xs, ys, first), span = along(xs, ys, last) - left;
    held = {
      first, last, isTime: true, left, span,
      of: (step) => (along(xs, ys, step) - left) / span,
      at: (share) => along(ys, xs, left + share * span),
    };
    return held;
  };

  const two = (number) => String(number).padStart(2, "0");

  // Digits behind the point that tell times apart which are less than a second from each other.
  const digitsOf = (apart) => (apart < 1 ? Math.ceil(-Math.log10(apart) - 1e-9) : 0);

  function clockText(seconds, apart, isNewDay) {
    const digits = digitsOf(apart), date = new Date(Math.round(Number(seconds.toFixed(digits)) * 1000));
    const time = `${two(date.getHours())}:${two(date.getMinutes())}`;
    const part = digits ? (date.getMilliseconds() / 1000).toFixed(digits).slice(1) : "";
    const text = apart < 60 ? `${time}:${two(date.getSeconds())}${part}` : time;
    return isNewDay ? `${date.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${text}` : text;
  }

  function sinceText(seconds, apart) {
    const digits = digitsOf(apart), sign = seconds < 0 ? "\u2212" : "";
    const size = Number(Math.abs(seconds).toFixed(digits)), minutes = Math.floor(size / 60);
    const rest = (size - 60 * minutes).toFixed(digits).padStart(digits ? digits + 3 : 2, "0");
    if (size >= 3600) return `${sign}${Math.floor(minutes / 60)}:${two(minutes % 60)}${apart < 60 ? ":" + rest : ""} h`;
    if (apart >= 60) return `${sign}${minutes} min`;
    return minutes ? `${sign}${minutes}:${rest} min` : `${sign}${Number(size.toPrecision(4))} s`;
  }

  function timeTicks(axis, most) {
    const isClock = ns.view.x === "clock";
    const zero = isClock ? new Date(axis.left * 1000).getTimezoneOffset() * 60 : started ?? axis.left;
    const ticks = ns.clockTicks(axis.left - zero, axis.left - zero + axis.span, most);
    const apart = ticks.length > 1 ? ticks[1] - ticks[0] : axis.span;
    let day = "";
    return ticks.map((tick) => {
      const own = new Date((tick + zero) * 1000).toDateString();
      const text = isClock ? clockText(tick + zero, apart, own !== day) : sinceText(tick, apart);
      day = own;
      return { share: (tick + zero - axis.left) / axis.span, text };
    });
  }

  // The time of day at a step, or "" where it is not known.
  ns.clockAt = function (step) {
    const known = knots();
    if (!known || step < known[0][0] || step > known[0][known[0].length - 1]) return "";
    return clockText(Math.floor(along(known[0], known[1], step)), 1);
  };

  // What stands at the foot of an axis so wide: [{share, text}].
  ns.axisTicks = function (width) {
    const axis = ns.axis(), most = Math.max(2, Math.floor(width / TICK_PX));
    if (axis.isTime) return timeTicks(axis, most);
    return ns.stepTicks(axis.first, axis.last, most).map((step) => ({ share: axis.of(step), text: ns.count(step) }));
  };

  ns.AXIS_WORDS = { "": "step", clock: "clock", relative: "since start" };
  ns.nextAxis = () => ns.change({ x: KINDS[(KINDS.indexOf(ns.view.x) + 1) % KINDS.length] });

  ns.startAxis = function () {
    ns.on("message", (header) => { if (header.started !== undefined) started = header.started; });
    const buttons = KINDS.flatMap((kind) => PLACES.map((place) => ({ kind, button: ns.byId(place + (kind || "step")) })));
    for (const { kind, button } of buttons) button.addEventListener("click", () => ns.change({ x: kind }));
    const draw = () => {
      for (const { kind, button } of buttons) ns.setAttribute(button, "aria-pressed", String(ns.view.x === kind));
      ns.later(ns.drawLines);
      ns.later(ns.drawHeatmap);
    };
    let shown = ns.view.x;
    ns.on("view", ({ x }) => { if (x !== shown) { shown = x; draw(); ns.emit("axis", x); } });
    draw();
  };
})(window.nanscope);
