// The x-axis that charts share (ns_38): by step, by the clock and since the start. Times of day are those of UTC here.
import assert from "node:assert/strict";
import { test } from "node:test";
import { near, open, random, same } from "./page.mjs";

process.env.TZ = "UTC";

// `times` are of `steps`; steps [first, end) are shown, held.
function axis({ kind = "", steps = [], times = [], range = [0, 10], paused = true, started = undefined } = {}, more = []) {
  const page = open(["00", "10", "20", "37", "38", ...more]);
  const { ns } = page;
  Object.assign(ns, { drawLines() {}, drawHeatmap() {} });
  ns.startAxis();
  ns.arrays.set("times/x", Float64Array.from(steps));
  ns.arrays.set("times/y", Float64Array.from(times));
  ns.showArrays();
  ns.emit("message", { started });
  ns.range = range;
  Object.assign(ns.view, { x: kind, paused });
  return page;
}
const spread = Array.from({ length: 101 }, (_, at) => at / 100);

test("held, an axis by step has room for half a step at both ends", () => {
  const { first, last, of, at, isTime } = axis({ range: [5, 15] }).ns.axis();
  same([first, last, isTime], [4.5, 14.5, false]);
  near([5, 9.5, 14].map(of), [0.05, 0.5, 0.95]);
  near([0, 0.5, 1].map(at), [4.5, 9.5, 14.5]);
});

test("live it has room for ten steps, and grows in jumps of a sixteenth to an eighth", () => {
  const range = (first, end) => [...axis({ range: [first, end], paused: false }).ns.axisRange()];
  same(range(0, 1), [-0.5, 9.5]);
  same(range(0, 100), [-0.5, 99.5]); // jumps of 4
  same(range(0, 101), [-0.5, 103.5]);
  same(range(0, 1000), [-0.5, 1023.5]); // of 32
  same(range(970, 1001), [969.5, 1000.5]); // of 1
  same([...axis({ range: null, paused: false }).ns.axisRange()], [-0.5, 9.5]); // no step yet
});

test("an axis by time follows the times of the steps, by hand", () => {
  // A pause of 100 s between steps 1 and 2: mean slope (121 - 1) / 4 = 30 s a step, which is that beyond the ends.
  const { ns } = axis({ kind: "relative", steps: [0, 1, 2, 3, 4], times: [1, 11, 111, 116, 121], range: [0, 5], started: 1 });
  const { left, span, isTime, of, at } = ns.axis();
  same([isTime, left, span], [true, 1 - 15, 150]); // -0.5 steps at 30 s, 4.5 at 121 + 15
  near([0, 1, 2, 3, 4].map(of), [15, 25, 125, 130, 135].map((seconds) => seconds / 150));
  near([at(75 / 150)], [1.5], 1e-9); // in the middle of the pause
});

test("by any axis a place is where its step is, and steps lie in order", () => {
  const next = random(17);
  for (const kind of ["", "clock", "relative"]) {
    for (let round = 0; round < 30; round++) {
      const steps = [], times = [];
      let step = Math.floor(50 * next()), time = 1.7e9 + 1e6 * next();
      for (let at = 2 + Math.floor(40 * next()); at > 0; at--) {
        steps.push((step += 1 + Math.floor(5 * next())));
        times.push((time += 0.1 + (next() < 0.1 ? 5000 : 3) * next()));
      }
      const low = Math.max(0, steps[0] - 5 + Math.floor(10 * next())), range = [low, low + 2 + Math.floor(150 * next())];
      const found = axis({ kind, steps, times, range, paused: next() < 0.5 }).ns.axis();
      near([found.of(found.first), found.of(found.last)], [0, 1], 1e-6);
      near(spread.map((share) => found.of(found.at(share))), spread, 1e-6);
      const all = Array.from({ length: 200 }, (_, at) => low - 20 + at);
      near(all.map((each) => found.at(found.of(each))), all, 1e-2); // times are known to 2e-7 s
      const places = all.map(found.of);
      assert.ok(places.every((place, at) => !at || place > places[at - 1]), `${kind} ${range}`);
    }
  }
});

test("times that are not known, or go back, are left out; of one alone nothing is known", () => {
  const { ns } = axis({ kind: "clock", steps: [0, 1, 2, 3, 4], times: [100, NaN, 90, 130, 140], range: [0, 5] });
  near([ns.axis().of(3) - ns.axis().of(0)], [30 / ns.axis().span]); // 100 s to 130 s
  for (const times of [[], [100], [100, NaN], [100, 100]]) {
    assert.equal(axis({ kind: "clock", steps: times.map((_, at) => at), times }).ns.axis().isTime, false, String(times));
  }
});

test("the axis is made anew for other steps, another kind and other times", () => {
  const { ns } = axis({ steps: [0, 10], times: [0, 10] });
  const by = ns.axis();
  assert.equal(ns.axis(), by);
  ns.range = [0, 20];
  assert.equal(ns.axis().last, 19.5);
  ns.view.x = "clock";
  assert.equal(ns.axis().span, 20);
  ns.arrays.set("times/y", Float64Array.of(0, 100));
  ns.showArrays();
  assert.equal(ns.axis().span, 200);
});

test("the foot of an axis by step has steps, one for about 110 pixels", () => {
  const { ns } = axis({ range: [0, 2000] });
  same(ns.axisTicks(500).map(({ text }) => text), ["0", "500", "1,000", "1,500"]);
  near(ns.axisTicks(500).map(({ share }) => share), [0.5, 500.5, 1000.5, 1500.5].map((place) => place / 2000));
});

test("a note's flag stands where its step is, by any axis", () => {
  for (const [kind, place] of [["", 0.5], ["clock", 0.8]]) {
    // The first five steps take 16 s each, the others 4 s: by the clock the middle step is at 80 percent.
    const page = axis({ kind, steps: [-0.5, 4.5, 9.5], times: [0, 80, 100], range: [0, 10] }, ["87"]);
    page.ns.heatmapBox = () => ({ l: 100, t: 0, w: 1000, h: 50 });
    near([page.ns.placeOfStep(4.5)], [100 + 1000 * place], 1e-9);
    same([page.ns.placeOfStep(-1), page.ns.placeOfStep(10)], [null, null]);
  }
});

const HOUR = 3600;
// Texts at the foot of an axis over these seconds, one step a second.
function texts(kind, from, to, { started = 0, most = 5 } = {}) {
  const steps = [0, to - from], times = [from, to];
  const { ns } = axis({ kind, steps, times, range: [0, to - from + 1], started });
  const found = ns.axisTicks(most * 110);
  assert.ok(found.every(({ share }) => share >= 0 && share <= 1));
  return found.map(({ text }) => text);
}

test("the time since the start is in seconds, minutes or hours", () => {
  same(texts("relative", 0, 40), ["0 s", "10 s", "20 s", "30 s", "40 s"]);
  same(texts("relative", 50, 130), ["1:00 min", "1:30 min", "2:00 min"]);
  same(texts("relative", 0, 1300), ["0 min", "5 min", "10 min", "15 min", "20 min"]);
  same(texts("relative", 0, 4 * HOUR), ["0 min", "1:00 h", "2:00 h", "3:00 h", "4:00 h"]);
  same(texts("relative", 100, 140, { started: 120 }), ["\u221220 s", "\u221210 s", "0 s", "10 s", "20 s"]);
});

test("no time has sixty seconds or sixty minutes, and near ones are told apart", () => {
  same(texts("relative", 7140, 7200), ["1:59:00 h", "1:59:15 h", "1:59:30 h", "1:59:45 h", "2:00:00 h"]);
  same(texts("relative", 119, 120, { most: 5 }), ["1:58.5 min", "1:59.0 min", "1:59.5 min", "2:00.0 min", "2:00.5 min"]);
  const next = random(4);
  for (let round = 0; round < 200; round++) {
    const from = Math.floor(20000 * next()), to = from + 1 + Math.floor(10 ** (4 * next()));
    for (const kind of ["relative", "clock"]) {
      const found = texts(kind, from, to, { most: 2 + Math.floor(6 * next()) });
      assert.equal(new Set(found).size, found.length, found.join());
      assert.ok(!found.some((text) => /:60/.test(text)), found.join());
    }
  }
});

test("the clock says the day once, and seconds only where they matter", () => {
  const day = Date.UTC(2026, 2, 1) / 1000;
  same(texts("clock", day + 10 * HOUR, day + 14 * HOUR), ["1 Mar 10:00", "11:00", "12:00", "13:00", "14:00"]);
  same(texts("clock", day + 22 * HOUR, day + 26 * HOUR), ["1 Mar 22:00", "23:00", "2 Mar 00:00", "01:00", "02:00"]);
  same(texts("clock", day, day + 40), ["1 Mar 00:00:00", "00:00:10", "00:00:20", "00:00:30", "00:00:40"]);
});

test("the time of day at a step, between those that are known", () => {
  const day = Date.UTC(2026, 2, 1) / 1000;
  const { ns } = axis({ steps: [10, 20], times: [day, day + 100] });
  same([10, 15, 20].map(ns.clockAt), ["00:00:00", "00:00:50", "00:01:40"]);
  same([9, 21].map(ns.clockAt), ["", ""]);
});

test("the key goes through the kinds, and each is told once", () => {
  const { ns } = axis();
  const told = [];
  ns.on("axis", (kind) => told.push(kind));
  for (let time = 0; time < 4; time++) ns.nextAxis();
  same(told, ["clock", "relative", "", "clock"]);
  ns.change({ smooth: 0.5 });
  assert.equal(told.length, 4);
});
