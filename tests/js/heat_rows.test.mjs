// The heatmap's codes row by row (ns_49), from what live messages change of them: against all of them turned anew.
import assert from "node:assert/strict";
import { test } from "node:test";
import { open, random, same } from "./page.mjs";

// The store of a page: `send` gives it columns, of which the message drops and keeps some, as dashboard/live/codec.py says.
function store() {
  const { ns } = open(["00", "10", "20", "49", "50"]);
  function send(columns, { drop = 0, keep = 0, rows = columns[0]?.length ?? 0 } = {}) {
    const tail = columns.slice(keep).flat();
    const arrays = [["heatmap/codes", "u2", drop * rows, keep * rows, tail.length], ["heatmap/steps", "f8", 0, 0, columns.length]];
    const header = Buffer.from(JSON.stringify({ arrays })), length = Buffer.alloc(4);
    length.writeUInt32LE(header.length);
    const steps = Float64Array.from(columns, (_, at) => at);
    ns.decode(Uint8Array.from(Buffer.concat([length, header, Buffer.from(Uint16Array.from(tail).buffer), Buffer.from(steps.buffer)])).buffer);
    ns.showArrays();
    ns.heatmap.fields = { rowCount: rows };
  }
  const sync = (columns) => { ns.syncHeatRows(); check(columns); };
  const check = (columns) => {
    for (let row = 0; row < (columns[0]?.length ?? 0); row++) same([...ns.heatRow(row)], columns.map((column) => column[row]));
  };
  return { ns, send, sync };
}
const column = (number, rows = 3) => Array.from({ length: rows }, (_, row) => 1000 * row + number);
const columns = (first, end, rows) => Array.from({ length: end - first }, (_, at) => column(first + at, rows));

test("the first picture is turned by hand", () => {
  const { ns, send, sync } = store();
  send([[1, 2], [3, 4], [5, 6]]);
  sync([[1, 2], [3, 4], [5, 6]]);
  same([[...ns.heatRow(0)], [...ns.heatRow(1)]], [[1, 3, 5], [2, 4, 6]]);
  assert.equal(ns.heatKept(), 0);
});

test("columns are appended; those that were seen are kept", () => {
  const { ns, send, sync } = store();
  send(columns(0, 4));
  sync(columns(0, 4));
  ns.heatSeen();
  send(columns(0, 6), { keep: 4 });
  sync(columns(0, 6));
  assert.equal(ns.heatKept(), 4);
  send(columns(0, 7), { keep: 6 });
  sync(columns(0, 7));
  assert.equal(ns.heatKept(), 4); // the two in between were not drawn
});

test("columns that have left are gone from the left, also from those that were seen", () => {
  const { ns, send, sync } = store();
  send(columns(0, 8));
  sync(columns(0, 8));
  ns.heatSeen();
  send(columns(3, 9), { drop: 3, keep: 5 });
  sync(columns(3, 9));
  assert.equal(ns.heatKept(), 5);
  send(columns(9, 12), { drop: 6 });
  sync(columns(9, 12));
  assert.equal(ns.heatKept(), 0);
});

test("a last column that was filled up is turned again", () => {
  const { ns, send, sync } = store();
  send([...columns(0, 4), [7, 8, 9]]);
  sync([...columns(0, 4), [7, 8, 9]]);
  ns.heatSeen();
  send(columns(0, 5), { keep: 4 });
  sync(columns(0, 5));
  assert.equal(ns.heatKept(), 4);
});

test("a window that moves on for long outgrows the room, and is laid anew", () => {
  const { ns, send, sync } = store();
  send(columns(0, 10));
  sync(columns(0, 10));
  let laid = 0;
  for (let first = 1; first < 60; first++) {
    ns.heatSeen();
    send(columns(first, first + 10), { drop: 1, keep: 9 });
    sync(columns(first, first + 10));
    assert.ok([0, 9].includes(ns.heatKept()), String(ns.heatKept()));
    laid += ns.heatKept() === 0;
  }
  assert.ok(laid >= 1 && laid <= 10, String(laid)); // room for 16 columns: about every sixth
  send(columns(59, 300), { keep: 10 });
  sync(columns(59, 300));
});

test("other rows, a message that was not drawn, and no columns begin anew", () => {
  const { ns, send, sync } = store();
  send(columns(0, 4));
  sync(columns(0, 4));
  ns.heatSeen();
  send(columns(0, 6, 2));
  sync(columns(0, 6, 2));
  assert.equal(ns.heatKept(), 0);
  ns.heatSeen();
  send(columns(0, 7, 2), { keep: 6 }); // comes and goes between two frames
  send(columns(1, 8, 2), { drop: 1, keep: 6 });
  sync(columns(1, 8, 2));
  assert.equal(ns.heatKept(), 0);
  send([], { rows: 2 });
  ns.syncHeatRows();
  assert.equal(ns.heatRow(1).length, 0);
  send(columns(3, 5, 2), { rows: 2 });
  sync(columns(3, 5, 2));
});

test("whatever messages drop, keep and add, rows are the columns turned", () => {
  const next = random(11), pick = (most) => Math.floor(most * next());
  for (let round = 0; round < 20; round++) {
    const { ns, send, sync } = store(), rows = 1 + pick(4);
    const fresh = () => Array.from({ length: rows }, () => pick(65536));
    let all = Array.from({ length: 1 + pick(20) }, fresh), drawn = null;
    send(all);
    for (let message = 0; message < 60; message++) {
      sync(all);
      // What is said to be as it was drawn is so.
      if (drawn) for (let at = 0; at < ns.heatKept(); at++) assert.ok(drawn.includes(all[at]), `${round} ${message} ${at}`);
      if (pick(3)) { ns.heatSeen(); drawn = all; }
      const drop = Math.min(all.length, pick(4)), left = all.slice(drop), keep = Math.max(0, left.length - pick(3));
      all = [...left.slice(0, keep), ...Array.from({ length: 1 + pick(5) }, fresh)];
      send(all, { drop, keep });
    }
  }
});
