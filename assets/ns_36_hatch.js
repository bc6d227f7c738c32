// Patterns of what is no number, for charts: stripes for NaN, a lattice for Inf, told apart without their colours, as in
// the heatmap.
(function (ns) {
  "use strict";

  const SIZE = 6;
  /** @type {Map<string, CanvasPattern>} */
  const made = new Map(); // by kind and colour

  function make(context, kind, colour) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = SIZE;
    const own = tile.getContext("2d");
    own.globalAlpha = 0.4;
    own.fillStyle = colour;
    own.fillRect(0, 0, SIZE, SIZE);
    own.globalAlpha = 1;
    for (let at = 0; at < SIZE; at++) {
      if (kind === "nan") for (const by of [0, 1, 2]) own.fillRect(at, (SIZE - at + by) % SIZE, 1, 1);
      else { own.fillRect(at, 0, 1, 1); own.fillRect(0, at, 1, 1); }
    }
    return context.createPattern(tile, "repeat");
  }

  ns.hatch = function (context, kind, colour) {
    const key = `${kind} ${colour}`;
    if (!made.has(key)) made.set(key, make(context, kind, colour));
    return made.get(key);
  };
})(window.nanscope);
