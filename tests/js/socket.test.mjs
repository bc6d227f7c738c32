// The live connection (ns_30) and what of an answer to an older wish counts for the newer one.
import assert from "node:assert/strict";
import { test } from "node:test";
import { open, same } from "./page.mjs";

// A page that has asked once, and a server that says what it is told to.
function linked() {
  const page = open(["00", "10", "20", "30", "49", "50"]);
  const sent = [];
  let socket = null;
  page.window.WebSocket = class {
    static OPEN = 1;
    constructor() { Object.assign(this, { readyState: 1, send: (text) => sent.push(JSON.parse(text)) }); socket = this; }
  };
  page.ns.notifies = () => false;
  page.ns.startHeatmap();
  page.ns.startSocket();
  socket.onopen();
  const say = (fields) => {
    const header = Buffer.from(JSON.stringify({ arrays: [], charts: {}, ...fields }));
    const length = Buffer.alloc(4);
    length.writeUInt32LE(header.length);
    socket.onmessage({ data: Uint8Array.from(Buffer.concat([length, header])).buffer });
  };
  const wish = () => sent.findLast((each) => each.m === "subscribe").id;
  return { ...page, say, wish };
}

const SCALE = { rowCount: 2, stepsPerColumn: 1, low: 5, high: 65535, statistic: "grad_norm", every: 1 };
const named = (...rows) => ({ ...SCALE, rows, kinds: rows.map(() => "layer"), tensors: rows.map(() => 1) });

for (const [what, before] of [["no other run was shown", null], ["another run was shown", named("other", "names")]]) {
  test(`names that came with an answer to an older wish are the newer one's, where ${what}`, () => {
    const { ns, say, wish } = linked();
    if (before) say({ subscription: wish(), run: "first", heatmap: before });
    const older = wish();
    ns.chooseRun("third", true);
    say({ subscription: older, run: "second", heatmap: named("a", "b") });
    same(ns.heatmap.rows, before ? before.rows : [], "what is on screen stays until the answer");
    say({ subscription: wish(), run: "third", heatmap: SCALE }); // with the names that the page has
    same([ns.heatmap.rows, ns.heatmap.kinds, ns.heatmap.tensors], [["a", "b"], ["layer", "layer"], [1, 1]]);
    same(ns.heatmap.shown, [0, 1]);
  });
}

test("names stay where a message brings none, and with them which are shown", () => {
  const { ns, say, wish } = linked();
  say({ subscription: wish(), run: "one", heatmap: named("a", "a.b", "c") });
  ns.focusRows("a");
  const { rows } = ns.heatmap;
  say({ subscription: wish(), run: "one", heatmap: SCALE });
  assert.equal(ns.heatmap.rows, rows);
  same([ns.heatmap.shown, ns.heatmap.focus], [[0, 1], "a"]);
});

test("a run without a heatmap has none, and the next one its names", () => {
  const { ns, say, wish } = linked();
  say({ subscription: wish(), run: "one", heatmap: named("a", "b") });
  say({ subscription: wish(), run: "bare", heatmap: null });
  assert.equal(ns.heatmap.fields, null);
  say({ subscription: wish(), run: "one", heatmap: SCALE });
  same([ns.heatmap.rows, ns.heatmap.fields.rowCount], [["a", "b"], 2]);
});
