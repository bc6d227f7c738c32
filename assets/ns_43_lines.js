// How lines are drawn: smoothed, with the raw line faint below; on log scales; without outliers. For all charts of the
// page, kept in the address.
(function (ns) {
  "use strict";

  const STEPS = [0, 0.6, 0.9]; // of the key
  const RAW_OPACITY = 0.3;
  const INNER = [0.01, 0.99]; // share of the values that a clipped scale shows

  // Exponential moving average with the bias of its beginning taken out, as TensorBoard has it. A value that is not
  // finite stays a hole, and the average goes on behind it.
  ns.smoothed = function (values, weight) {
    const smooth = new Float64Array(values.length);
    let sum = 0, share = 0;
    values.forEach((value, index) => {
      if (Number.isFinite(value)) {
        sum = weight * sum + (1 - weight) * value;
        share = weight * share + (1 - weight);
      }
      smooth[index] = Number.isFinite(value) ? sum / share : NaN;
    });
    return smooth;
  };

  // The line of a series; smoothed, with the raw one faint below it.
  ns.smoothedLines = function (line) {
    const { smooth } = ns.view;
    if (!smooth || line.y.length < 3) return [line];
    return [{ ...line, alpha: RAW_OPACITY, isRaw: true }, { ...line, y: ns.smoothed(line.y, smooth) }];
  };

  // Smallest and largest value of the scale once outliers are left out; null where there is nothing to clip.
  ns.innerLimits = function (values) {
    const finite = Float64Array.from(values.filter(Number.isFinite)).sort();
    if (!ns.view.clip || finite.length < 10) return null;
    const [low, high] = INNER.map((share) => finite[Math.round(share * (finite.length - 1))]);
    return low < high ? [low, high] : null;
  };

  ns.lines = {
    smooth: () => ns.change({ smooth: STEPS[(STEPS.findIndex((each) => each >= ns.view.smooth) + 1) % STEPS.length] }),
    log: () => ns.change({ log: !ns.view.log }),
    clip: () => ns.change({ clip: !ns.view.clip }),
  };

  let range = null, shown = "";

  function draw() {
    const { smooth, log, clip } = ns.view;
    if (range.value !== String(smooth)) range.value = String(smooth);
    ns.setText(ns.byId("lines-smoothing-text"), smooth ? smooth.toFixed(2) : "off");
    ns.setAttribute(ns.byId("lines-log"), "aria-pressed", String(log));
    ns.setAttribute(ns.byId("lines-clip"), "aria-pressed", String(clip));
    const key = [smooth, log, clip].join();
    if (key !== shown) ns.later(ns.drawLines);
    shown = key;
  }

  ns.startLines = function () {
    range = ns.make("input", "");
    Object.assign(range, { type: "range", min: "0", max: "0.99", step: "0.01", value: "0" });
    ns.setAttribute(range, "aria-label", "Smoothing");
    range.addEventListener("input", () => ns.change({ smooth: Number(range.value) }));
    ns.byId("lines-smoothing").append(range);
    ns.byId("lines-log").addEventListener("click", ns.lines.log);
    ns.byId("lines-clip").addEventListener("click", ns.lines.clip);
    // A click elsewhere closes it, as it does every menu.
    document.addEventListener("click", ({ target }) => {
      const menu = ns.byId("lines");
      if (menu.open && !menu.contains(target)) menu.open = false;
    });
    ns.on("view", draw);
    draw();
  };
})(window.nanscope);
