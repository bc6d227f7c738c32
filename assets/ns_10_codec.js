// Parses one binary message of the live feed. The layout is described in dashboard/live_codec.py.
(function (ns) {
  "use strict";

  const TYPES = { f4: Float32Array, f8: Float64Array, u1: Uint8Array, u2: Uint16Array };
  const text = new TextDecoder();

  // Arrays that the server has sent, by key; it sends only what changed in them.
  ns.arrays = new Map();

  // Those of the message that is on screen. An answer to an older wish changes what the server's next one builds
  // on, and must not change what is drawn: fields and arrays of a picture belong together.
  /** @type {Map<string, Numbers>} */
  let picture = new Map();
  ns.array = (key) => picture.get(key) || new Float64Array(0);
  ns.showArrays = () => { picture = new Map(ns.arrays); };
  // How the newest value of a key came from the one before: {before, after, drop, keep} in elements.
  const changes = new Map();
  ns.changeOf = (key) => changes.get(key);

  // Names of the heatmap's rows come where they have changed, with an answer to an older wish, too.
  let names = { rows: [], kinds: [], tensors: [] };
  function withNames(fields) {
    if (fields.rows) names = { rows: fields.rows, kinds: fields.kinds, tensors: fields.tensors };
    else Object.assign(fields, names);
  }

  // Applies the message's arrays to `ns.arrays` and returns its header, with the names that the server leaves out.
  ns.decode = function (buffer) {
    const length = new DataView(buffer).getUint32(0, true);
    const header = JSON.parse(text.decode(new Uint8Array(buffer, 4, length)));
    let at = 4 + length;
    for (const [key, dtype, drop, keep, count] of header.arrays) {
      const Type = TYPES[dtype];
      const bytes = count * Type.BYTES_PER_ELEMENT;
      // A slice, because the payload is not aligned.
      const tail = new Type(buffer.slice(at, at + bytes));
      at += bytes;
      const value = new Type(keep + count);
      if (keep) value.set(ns.arrays.get(key).subarray(drop, drop + keep));
      value.set(tail, keep);
      changes.set(key, { before: ns.arrays.get(key), after: value, drop, keep });
      ns.arrays.set(key, value);
    }
    if (header.heatmap) withNames(header.heatmap);
    return header;
  };
})(window.nanscope);
