// The heatmap while a zoom or pan moves: the old picture, stretched to where its steps lie now. A picture that is painted
// in a moment is painted anew instead, as is every one once the move rests, or when new cells have come.
(function (ns) {
  "use strict";

  const QUICK_MS = 2; // a painting that takes no longer does not delay a frame
  /** @type {Axis | null} */
  let painted = null; // the axis of the picture that is on the canvas
  let took = 0; // milliseconds of the last painting of all its columns

  ns.forgetPainted = () => { painted = null; };

  /** @param {number} ms @param {boolean} isWhole */
  ns.heatmapPainted = function (ms, isWhole) {
    painted = ns.axis();
    if (isWhole) took = ms;
    Object.assign(ns.byId("heatmap-canvas").style, { transform: "", clipPath: "" });
  };

  // Where a picture of one axis lies on another: moved by so many of its widths, after it was stretched.
  ns.stretchOf = function (from, to) {
    const span = to.last - to.first;
    return { scale: (from.last - from.first) / span, by: (from.first - to.first) / span };
  };

  // Stretches the picture and says whether that will do.
  ns.stretchHeatmap = function () {
    const axis = ns.axis();
    if (!ns.isMoving() || !painted || took < QUICK_MS || painted.isTime || axis.isTime || ns.isFlow()) return false;
    const { scale, by } = ns.stretchOf(painted, axis), width = ns.heatmapBox().w;
    const left = Math.max(0, -by / scale), right = Math.max(0, 1 - (1 - by) / scale); // what lies outside of the plot
    if (left + right >= 1) return false; // none of it is in view
    Object.assign(ns.byId("heatmap-canvas").style, {
      transformOrigin: "0 0", transform: `translateX(${by * width}px) scaleX(${scale})`,
      clipPath: `inset(0 ${100 * right}% 0 ${100 * left}%)`,
    });
    return true;
  };
})(window.nanscope);
