// Judges names by a pattern for ns_57_layers_filter.js. A worker of its own: a pattern such as (a+)+$ may try for hours,
// and is ended with this. Not loaded by the page itself (`assets_ignore` in dashboard/serving/app.py).
"use strict";

self.onmessage = ({ data: { id, text, names, kinds } }) => {
  const pattern = new RegExp(text, "i");
  const rows = [];
  let layer = "", isLayerNamed = false;
  names.forEach((name, row) => {
    const isNamed = pattern.test(name);
    if (kinds[row] !== "parameter") {
      layer = name;
      isLayerNamed = isNamed;
    }
    // Parameters come with their layer.
    const isInside = kinds[row] === "parameter" && isLayerNamed && name.startsWith(layer + ".");
    if (isNamed || isInside) rows.push(row);
  });
  self.postMessage({ id, rows });
};
self.postMessage("ready");
