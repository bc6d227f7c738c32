// Ticks, their texts and the scales of the charts (ns_37); areas that are stacked (ns_39).
import assert from "node:assert/strict";
import { test } from "node:test";
import { near, open, random, same } from "./page.mjs";

const { ns } = open(["00", "37", "39"]);

test("linear ticks are round values in the range, as many as there is room for", () => {
  same(ns.linearTicks(0, 10, 6), [0, 2, 4, 6, 8, 10]);
  same(ns.linearTicks(0, 10, 5), [0, 5, 10]); // six of 2 are too many
  same(ns.linearTicks(0.12, 0.98, 5), [0.2, 0.4, 0.6, 0.8]);
  same(ns.linearTicks(-1, 1, 5), [-1, -0.5, 0, 0.5, 1]);
  same(ns.linearTicks(0.1, 0.7, 7), [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]); // not 0.30000000000000004
  same(ns.linearTicks(-3e-8, 3e-8, 4), [-2e-8, 0, 2e-8]);
  same(ns.linearTicks(0, 1, 1), [0]);
});

test("no range and no room have no ticks", () => {
  for (const [low, high, most] of [[1, 1, 5], [2, 1, 5], [NaN, 1, 5], [0, 1, 0]]) same(ns.linearTicks(low, high, most), []);
});

test("linear ticks of any range are in it, grow evenly and are no more than wished", () => {
  const next = random(5);
  for (let round = 0; round < 500; round++) {
    const size = 10 ** (20 * next() - 10), low = size * (20 * next() - 10), high = low + size, most = 1 + Math.floor(9 * next());
    const ticks = ns.linearTicks(low, high, most), words = `${low} ${high} ${most}: ${ticks}`;
    assert.ok(ticks.length <= most, words);
    if (most >= 3) assert.ok(ticks.length >= 1, words);
    for (const tick of ticks) assert.ok(tick >= low - 1e-8 * size && tick <= high + 1e-8 * size, words);
    const apart = ticks.slice(1).map((tick, at) => tick - ticks[at]);
    for (const each of apart) assert.ok(Math.abs(each - apart[0]) < 1e-6 * size && each > 0, words);
  }
});

test("log ticks are powers of ten, evenly apart; less than two of them are round values", () => {
  same(ns.logTicks(0.5, 2000, 5), [1, 10, 100, 1000]);
  same(ns.logTicks(1e-3, 1e3, 3), [1e-3, 1, 1e3]);
  same(ns.logTicks(1e-9, 1e9, 4), [1e-5, 1, 1e5]);
  same(ns.logTicks(2, 9, 5), [2, 4, 6, 8]);
  same(ns.logTicks(0.05, 0.9, 5), [0.2, 0.4, 0.6, 0.8]); // 0.1 alone is no scale
});

test("steps have whole ticks from zero on", () => {
  same(ns.stepTicks(-0.5, 9.5, 5), [0, 2, 4, 6, 8]);
  same(ns.stepTicks(0, 3, 10), [0, 1, 2, 3]); // no halves
  same(ns.stepTicks(999.5, 2000.5, 4), [1000, 1500, 2000]);
  same(ns.stepTicks(7, 7, 5), [7]);
});

test("a clock has its own round numbers", () => {
  same(ns.clockTicks(0, 100, 4), [0, 30, 60, 90]);
  same(ns.clockTicks(50, 700, 5), [300, 600]); // five minutes: 130 s would be too near
  same(ns.clockTicks(3500, 25300, 5), [7200, 14400, 21600]); // two hours
  same(ns.clockTicks(0, 86400 * 7, 3), [0, 259200, 518400]); // three days
  same(ns.clockTicks(0, 2, 5), [0, 0.5, 1, 1.5, 2]); // below a second as any number
});

test("the text of a tick is as short as the distance of the ticks allows", () => {
  const texts = (...ticks) => ticks.map((tick) => ns.tickText(tick, ticks));
  same(texts(0, 0.25, 0.5), ["0", "0.25", "0.5"]);
  same(texts(-2, -1, 0, 1), ["-2", "-1", "0", "1"]);
  same(texts(1e-7, 2e-7), ["1e-7", "2e-7"]);
  same(texts(20000, 25000), ["20,000", "25,000"]);
  same(texts(1e6, 2e6), ["1e6", "2e6"]);
  same(texts(1e-2, 1, 100), ["0.01", "1", "100"]);
});

test("the first of powers of ten that are far apart is no zero", () => {
  const ticks = ns.logTicks(5e-4, 2e3, 3);
  same(ticks, [1e-3, 1, 1e3]);
  same(ticks.map((tick) => ns.tickText(tick, ticks)), ["0.001", "1", "1000"]);
});

test("ticks that are near each other beside their size have texts of their own", () => {
  const texts = (...ticks) => ticks.map((tick) => ns.tickText(tick, ticks));
  same(texts(1230e6, 1231e6, 1232e6), ["1.23e9", "1.231e9", "1.232e9"]);
  same(texts(25000, 25000.5, 25001), ["25,000", "25,000.5", "25,001"]);
  same(texts(1.0001e-4, 1.0002e-4), ["1.0001e-4", "1.0002e-4"]);
  const next = random(8);
  for (let round = 0; round < 500; round++) {
    const low = (next() - 0.5) * 10 ** (24 * next() - 10), high = low + Math.abs(low) * 10 ** (-4 * next());
    const ticks = ns.linearTicks(low, high, 5), said = ticks.map((tick) => ns.tickText(tick, ticks));
    assert.equal(new Set(said).size, ticks.length, `${ticks} as ${said}`);
    said.forEach((text, at) => assert.ok(Math.abs(Number(text.replaceAll(",", "")) - ticks[at]) <= 1e-3 * (high - low), `${ticks} as ${said}`));
  }
});

test("a scale goes from 0 at its low end to 1 at its high end, and beyond", () => {
  const linear = ns.yScale(10, 30, false);
  near([10, 20, 30, 0, 40].map(linear.of), [0, 0.5, 1, -0.5, 1.5]);
  const log = ns.yScale(0.01, 100, true);
  near([0.01, 0.1, 1, 100, 1e4].map(log.of), [0, 0.25, 0.5, 1, 1.5]);
  assert.equal(ns.yScale(3, 3, false).of(3), 0); // no range: no division by zero
});

const fitted = (lowest, positive, highest, isLog = false) => {
  const { low, high, isLog: isSo } = ns.fittedScale({ lowest, positive, highest }, isLog);
  return [low, high, isSo];
};

test("a linear scale leaves six percent of room, but none below zero where nothing is negative", () => {
  near(fitted(10, 10, 20).slice(0, 2), [9.4, 20.6]);
  near(fitted(0.1, 0.1, 10).slice(0, 2), [0, 10.594]); // 6 % of 9.9 is 0.594
  near(fitted(-5, 1, 5).slice(0, 2), [-5.6, 5.6]);
});

test("a constant stands in the middle", () => {
  same(fitted(3, 3, 3), [0, 6, false]);
  same(fitted(0, Infinity, 0), [-1, 1, false]);
  same(fitted(-4, Infinity, -4), [-5, -3, false]);
});

test("a log scale leaves its room in decades, and has at most 24 of them", () => {
  const [low, high, isLog] = fitted(1e-2, 1e-2, 1e3, true); // five decades: 0.3 at each end
  near([Math.log10(low), Math.log10(high)], [-2.3, 3.3], 1e-9);
  assert.equal(isLog, true);
  const wide = fitted(1e-40, 1e-40, 1, true);
  near([Math.log10(wide[0]), Math.log10(wide[1])], [-24, 2.4], 1e-9);
  assert.equal(fitted(-3, Infinity, -1, true)[2], false); // nothing is positive
});

test("without a finite value there is a scale, too", () => {
  same(fitted(Infinity, Infinity, -Infinity), [0, 1, false]);
  same(fitted(Infinity, Infinity, -Infinity, true), [0, 1, false]);
});

test("stacked areas stand on each other, and what is no number has no height", () => {
  const x = Float64Array.of(0, 1, 2);
  const areas = ns.stacked([
    { x, y: Float64Array.of(1, NaN, 3), colour: "a" },
    { x, y: Float64Array.of(10, 20, Infinity), colour: "b" },
    { x, y: Float64Array.of(100, 200, 300), colour: "c" },
  ]);
  same(areas.map(({ colour }) => colour), ["a", "b", "c"]);
  same(areas.map(({ low }) => [...low]), [[0, 0, 0], [1, 0, 3], [11, 20, 3]]);
  same(areas.map(({ high }) => [...high]), [[1, 0, 3], [11, 20, 3], [111, 220, 303]]);
  same(ns.stacked([]), []);
});

test("a stack is over the steps of its longest line: one that begins later or skips some adds nothing there", () => {
  const areas = ns.stacked([
    { x: Float64Array.of(0, 1, 2, 3), y: Float64Array.of(5, 6, 7, 8), colour: "" },
    { x: Float64Array.of(2, 3), y: Float64Array.of(20, 30), colour: "" },
    { x: Float64Array.of(1, 3), y: Float64Array.of(100, 300), colour: "" },
  ]);
  same(areas.map(({ x }) => [...x]), [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3]]);
  same(areas.map(({ low }) => [...low]), [[0, 0, 0, 0], [5, 6, 7, 8], [5, 6, 27, 38]]);
  same(areas.map(({ high }) => [...high]), [[5, 6, 7, 8], [5, 6, 27, 38], [5, 106, 27, 338]]);
});
