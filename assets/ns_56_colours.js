// Colours of pixels: packed as a canvas's 32-bit pixels have them, and mixed.
(function (ns) {
  "use strict";

  ns.packedColour = function (hex) {
    const number = parseInt(hex.slice(1), 16);
    return ((255 << 24) | ((number & 255) << 16) | (((number >> 8) & 255) << 8) | (number >> 16)) >>> 0;
  };

  ns.mixColours = function (from, to, share) {
    let packed = 255 << 24;
    for (const bits of [0, 8, 16]) {
      const a = (from >> bits) & 255, b = (to >> bits) & 255;
      packed |= Math.round(a + (b - a) * share) << bits;
    }
    return packed >>> 0;
  };
})(window.nanscope);
