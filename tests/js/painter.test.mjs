// Lines of a chart on their canvas (ns_39): what is stroked, as a context that only writes it down has it.
import assert from "node:assert/strict";
import { test } from "node:test";
import { open, same } from "./page.mjs";

// Strokes of a line, each as its pieces without a hole, of their points' x.
function strokes(line) {
  const { ns } = open(["00", "36", "39"]);
  const done = [];
  let path = [];
  const context = new Proxy({ globalAlpha: 1 }, {
    get: (target, name) => target[name] ?? ({
      beginPath: () => { path = []; }, moveTo: (x) => path.push([Math.round(x)]), lineTo: (x) => path.at(-1).push(Math.round(x)),
      stroke: () => done.push(path),
    })[name] ?? (() => {}),
  });
  const scale = { isLog: false, of: (value) => value / 100 };
  ns.paintChart(context, {
    box: { l: 0, t: 0, w: 100, h: 100 }, axis: { of: (step) => step / 100 }, scale, colours: {}, yTicks: [], xTicks: [], hasFoot: false,
    lines: [{ colour: "#fff", ...line }], areas: [], bands: [], marks: [], gaps: [], breaks: [], crosshair: null,
  });
  return done;
}
const steps = Array.from({ length: 30 }, (_, at) => at);

test("a line is stroked in parts, each from where the one before ends", () => {
  const parts = strokes({ x: steps, y: steps }).flat();
  assert.ok(parts.length > 2);
  for (let at = 1; at < parts.length; at++) assert.equal(parts[at][0], parts[at - 1].at(-1));
  same(parts.flatMap((part, at) => part.slice(at ? 1 : 0)), steps);
});

test("no part goes over a hole of its line, and none is left out beside it", () => {
  for (const hole of steps) {
    const pieces = strokes({ x: steps, y: steps.map((step) => (step === hole ? NaN : step)) }).flat();
    for (const piece of pieces) same(piece, steps.slice(piece[0], piece[0] + piece.length));
    same([...new Set(pieces.flat())], steps.filter((step) => step !== hole));
  }
});

test("a line that shines through is one stroke: nothing of it lies on itself", () => {
  assert.equal(strokes({ x: steps, y: steps, alpha: 0.3 }).length, 1);
});
