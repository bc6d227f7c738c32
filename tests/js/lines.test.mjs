// Smoothing and clipped scales (ns_43).
import assert from "node:assert/strict";
import { test } from "node:test";
import { near, open, random, same } from "./page.mjs";

const { ns } = open(["00", "20", "43"]);

test("smoothed is the average by hand, without the bias of its beginning", () => {
  near(ns.smoothed(Float64Array.of(1, 2, 3), 0.5), [1, 5 / 3, 17 / 7]);
  near(ns.smoothed(Float64Array.of(4, 0), 0.9), [4, 0.36 / 0.19]);
});

test("smoothed leaves values as they are with no weight, and a constant with any", () => {
  near(ns.smoothed(Float64Array.of(3, -1, 8), 0), [3, -1, 8]);
  near(ns.smoothed(new Float64Array(50).fill(2.5), 0.99), new Float64Array(50).fill(2.5));
});

test("smoothed keeps holes and goes on behind them", () => {
  const given = Float64Array.of(NaN, 1, NaN, Infinity, 2, -Infinity, 3);
  near(ns.smoothed(given, 0.5), [NaN, 1, NaN, NaN, 5 / 3, NaN, 17 / 7]);
});

test("smoothed is the weighted mean of the finite values so far", () => {
  const next = random(3), weight = 0.8;
  const values = Float64Array.from({ length: 120 }, () => (next() < 0.1 ? NaN : 20 * next() - 10));
  const expected = [...values].map((value, index) => {
    if (!Number.isFinite(value)) return NaN;
    const past = [...values].slice(0, index + 1).filter(Number.isFinite).reverse(); // newest first
    const weights = past.map((_, age) => weight ** age);
    return past.reduce((sum, each, age) => sum + each * weights[age], 0) / weights.reduce((a, b) => a + b);
  });
  near(ns.smoothed(values, weight), expected, 1e-9);
});

const clipped = (values) => { ns.view.clip = true; return ns.innerLimits(values); };

test("inner limits leave out one percent at either end", () => {
  const values = Array.from({ length: 101 }, (_, number) => number);
  same(clipped([...values].reverse()), [1, 99]);
  same(clipped([...values, NaN, Infinity, -Infinity]), [1, 99]);
});

test("inner limits go by numbers, not by their digits", () => {
  same(clipped([-100, 9, 10, 100, -20, -3, 0, 1, 2, 3, 1000]), [-100, 1000]);
  same(clipped([...new Array(100).fill(5), -1e9, 6, 6, 6, 1e9]), [5, 6]);
});

test("nothing is clipped without the switch, with few values, or of a constant", () => {
  assert.equal(clipped([1, 2, 3, 4, 5, 6, 7, 8, 9]), null);
  assert.equal(clipped(new Array(50).fill(3)), null);
  ns.view.clip = false;
  assert.equal(ns.innerLimits(Array.from({ length: 100 }, (_, number) => number)), null);
});

test("a smoothed line has the raw one faint below it; one of two points, or without a weight, stays alone", () => {
  const line = { name: "loss", x: Float64Array.of(0, 1, 2), y: Float64Array.of(1, 2, 3), colour: "#123456" };
  ns.view.smooth = 0;
  same(ns.smoothedLines(line), [line]);
  ns.view.smooth = 0.5;
  const [raw, smooth] = ns.smoothedLines(line);
  same(raw, { ...line, alpha: 0.3, isRaw: true });
  near(smooth.y, [1, 5 / 3, 17 / 7]);
  same([smooth.x, smooth.colour, smooth.alpha], [line.x, line.colour, undefined]);
  const short = { ...line, x: Float64Array.of(0, 1), y: Float64Array.of(1, 2) };
  same(ns.smoothedLines(short), [short]);
  ns.view.smooth = 0;
});
