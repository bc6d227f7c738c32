// Zoom and pan: which steps are on screen, and whether they move. While they move at every frame, "range" is all that
// each frame tells; what is asked of the server, and what else follows the view, hears of it now and then, and at rest.
(function (ns) {
  "use strict";

  const REST_MS = 120, TELL_MS = 400;
  let moved = -Infinity, told = -Infinity; // when the last move was, and when all heard of the view
  let resting = 0; // timer of the end of a move
  let isTelling = false;

  ns.isMoving = () => resting !== 0;

  function tell() {
    isTelling = true;
    ns.emit("view", ns.view);
    isTelling = false;
  }

  // Any other change of the view ends a move, too.
  ns.on("view", () => {
    told = performance.now();
    if (!resting || isTelling) return;
    window.clearTimeout(resting);
    resting = 0;
    ns.emit("rest", ns.view);
  });

  // Holds still at these steps. The first of a series of moves, and one alone, is told at once.
  ns.zoom = function (low, high) {
    const first = Math.max(0, Math.ceil(low));
    const end = Math.max(first + 2, Math.floor(high) + 1);
    const now = performance.now(), isSeries = ns.view.paused && now - moved < REST_MS;
    moved = now;
    if (!isSeries) {
      ns.setRange([first, end]);
      return ns.change({ first, end, paused: true });
    }
    window.clearTimeout(resting);
    resting = window.setTimeout(() => ns.change({}), REST_MS);
    Object.assign(ns.view, { first, end });
    ns.writeMoving();
    ns.setRange([first, end]);
    if (now - told > TELL_MS) tell();
  };
})(window.nanscope);
