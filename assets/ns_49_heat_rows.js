// The heatmap's codes row by row. They are sent column by column, because time adds columns; what is drawn goes along
// rows. Only the columns that a message adds are turned.
(function (ns) {
  "use strict";

  const SPARE = 1.5; // room for columns to come, of those that there are
  let codes = null; // the array that the rows hold
  let rows = 0, count = 0, capacity = 0, offset = 0; // columns [offset, offset + count) of each row
  let turned = new Uint16Array(0);
  let kept = 0; // columns that have not changed since they were drawn last

  function turn(source, from) {
    for (let column = from; column < count; column++) {
      const at = column * rows, to = offset + column;
      for (let row = 0; row < rows; row++) turned[row * capacity + to] = source[at + row];
    }
  }

  function restart(source) {
    offset = 0;
    capacity = Math.max(16, Math.ceil(count * SPARE));
    turned = new Uint16Array(rows * capacity);
    turn(source, 0);
    kept = 0;
  }

  // Brings the rows up to date with the picture's codes.
  ns.syncHeatRows = function () {
    const next = ns.array("heatmap/codes");
    const columns = ns.array("heatmap/steps").length;
    const nextRows = ns.heatmap.fields ? ns.heatmap.fields.rowCount : 0;
    if (next === codes && columns === count && nextRows === rows) return;
    const change = ns.changeOf("heatmap/codes");
    const isNext = change && change.before === codes && change.after === next && nextRows === rows && rows > 0;
    codes = next;
    rows = nextRows;
    const dropped = isNext ? change.drop / rows : 0, same = isNext ? Math.floor(change.keep / rows) : 0;
    count = columns;
    if (!isNext || offset + dropped + count > capacity) return restart(next);
    offset += dropped;
    turn(next, same);
    kept = Math.max(0, Math.min(kept - dropped, same));
  };

  // The fields with the scale that is on screen, while the new one is nearly the same: the percentiles of a live run
  // move a little with each message, and another scale repaints every cell.
  const NEARLY = 0.02; // of the scale's span
  ns.withSteadyScale = function (next, before) {
    if (!before || before.statistic !== next.statistic || before.low === null || next.low === null) return next;
    const most = NEARLY * Math.max(before.high - before.low, next.high - next.low);
    const isNear = Math.abs(next.low - before.low) <= most && Math.abs(next.high - before.high) <= most;
    return isNear ? { ...next, low: before.low, high: before.high } : next;
  };

  // Codes of a row by column; of one picture, not to be kept or written to.
  ns.heatRow = (row) => turned.subarray(row * capacity + offset, row * capacity + offset + count);
  ns.heatKept = () => kept;
  ns.heatSeen = () => { kept = count; };
})(window.nanscope);
