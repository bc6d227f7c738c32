// The newest points of the tracks between two pictures (ns_41): what is painted of them, and when all is painted anew.
import assert from "node:assert/strict";
import { test } from "node:test";
import { open, same } from "./page.mjs";

const LOSS = { id: "loss", names: ["loss"] };

// A live page that has painted its loss at steps 0 to 9, all of it 1; `send` brings more of it with a status.
function live({ high = 2, last = 20.5, smooth = 0 } = {}) {
  const page = open(["00", "10", "20", "41"]), { ns } = page;
  const axis = { first: -0.5, last }, done = { pieces: [], anew: 0, ranges: [] };
  const [x, y] = [Array.from({ length: 10 }, (_, at) => at), Array.from({ length: 10 }, () => 1)];
  ns.arrays.set("loss/loss/line/x", Float64Array.from(x));
  ns.arrays.set("loss/loss/line/y", Float32Array.from(y));
  ns.showArrays();
  const painted = { axis, scale: { low: 0, high }, lines: [{ name: "loss", x, y, hasDots: false }] };
  Object.assign(ns.view, { smooth });
  ns.range = [0, 10];
  Object.assign(ns, {
    templates: { tracks: ["loss"], charts: [LOSS] }, axis: () => axis, axisRange: () => [axis.first, axis.last],
    isOnScreen: () => true, painted: () => painted, plot: () => ({ querySelector: () => ({ getContext: () => ({}) }) }),
    paintOn: (_, line) => done.pieces.push([[...line.x], [...line.y]]),
    drawChart: () => { done.anew += 1; Object.assign(painted.lines[0], ns.lineWithNewest("loss", "loss")); },
  });
  ns.on("range", (range) => done.ranges.push(range));
  ns.startNewest();
  const send = (steps, values = steps.map(() => 1)) => { ns.emit("message", { newest: { loss: [steps, values] } }); page.frame(); };
  return { ...page, done, painted, send };
}

test("a line goes on from where it was painted to, and only there", () => {
  const { done, painted, send } = live();
  send([10, 11], [1, 0.5]);
  send([10, 11, 12], [1, 0.5, 2]);
  send([10, 11, 12], [1, 0.5, 2]);
  same(done, { pieces: [[[9, 10, 11], [1, 1, 0.5]], [[11, 12], [0.5, 2]]], anew: 0, ranges: [] });
  same([painted.lines[0].x.at(-1), painted.lines[0].x.length], [12, 13]);
});

test("what is no number is a hole, as in a picture", () => {
  const { done, send } = live();
  send([10, 11], [null, 1]);
  same(done.pieces, [[[9, 10, 11], [1, NaN, 1]]]);
});

for (const [why, options, values] of [["a value beyond the scale", { high: 1.5 }, [1.6]], ["a smoothed line", { smooth: 0.5 }, [1]]]) {
  test(`${why} is painted with all of the chart`, () => {
    const { done, send } = live(options);
    send([10], values);
    same([done.pieces.length, done.anew], [0, 1]);
  });
}

test("another axis paints all of the chart, with what has come since its picture", () => {
  const { ns, done, send } = live();
  ns.axis = () => ({});
  send([10, 11]);
  assert.equal(done.anew, 1);
  same([...ns.lineWithNewest("loss", "loss").x].slice(-3), [9, 10, 11]);
});

test("a step beyond the axis makes room for itself", () => {
  const { done, send } = live({ last: 10.5 });
  send([10]);
  same(done.ranges, []);
  send([10, 11]);
  same(done.ranges, [[0, 12]]);
});

test("a page that is held still, and one whose picture has come, have nothing of it", () => {
  const { ns, done, send } = live();
  ns.view.paused = true;
  send([10]);
  same(done, { pieces: [], anew: 0, ranges: [] });
  ns.view.paused = false;
  send([10]);
  assert.equal(ns.lineWithNewest("loss", "loss").x.length, 11);
  ns.emit("message", { charts: {} });
  assert.equal(ns.lineWithNewest("loss", "loss").x.length, 10);
});
