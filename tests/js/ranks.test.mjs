// The view Ranks (ns_57_ranks): distances from the median, columns of steps, and rows from top to bottom.
import assert from "node:assert/strict";
import { test } from "node:test";
import { near, open, same } from "./page.mjs";

// `cells[rank]` has a rank's values by column; the medians are given.
function ranks(cells, medians, more = {}) {
  const { ns } = open(["00", "10", "20", "50", "57"]);
  const numbers = cells.map((_, rank) => rank);
  ns.ranks.fields = {
    ranks: numbers, hosts: numbers.map(() => "a"), present: numbers.map(() => true), stepsPerColumn: 1, unit: "", scale: "ratio",
    times: { p50: numbers.map(() => null) }, ...more,
  };
  const size = ns.ranks.fields.stepsPerColumn;
  ns.arrays.set("ranks/steps", Float64Array.from(medians, (_, column) => 10 + column * size));
  ns.arrays.set("ranks/values", Float32Array.from(medians.flatMap((median, column) => [median, ...cells.map((own) => own[column])])));
  ns.showArrays();
  return ns;
}

test("values stand behind the median of their column", () => {
  const ns = ranks([[1, 2], [3, 4], [5, 6]], [3, 4]);
  same([ns.rankMedian(0), ns.rankMedian(1)], [3, 4]);
  same([ns.rankValue(0, 0), ns.rankValue(2, 0), ns.rankValue(1, 1)], [1, 5, 4]);
});

test("a distance is in doublings of the median, or a difference", () => {
  const ns = ranks([[1]], [1]);
  near([[8, 1], [0.25, 1], [3, 3], [0, 0]].map(([value, median]) => ns.rankDistance(value, median)), [3, -2, 0, 0]);
  for (const [value, median] of [[NaN, 1], [Infinity, 1], [-Infinity, 1], [1, NaN], [0, 1], [-1, 2]]) {
    assert.ok(Number.isNaN(ns.rankDistance(value, median)), `${value} ${median}`);
  }
  same([3, -2, 0, NaN].map(ns.rankDistanceText), ["\u00d78.0", "\u00f74.0", "\u00d71.00", ""]);
  ns.ranks.fields.scale = "difference";
  same([ns.rankDistance(-1, 2), ns.rankDistanceText(-3), ns.rankDistanceText(3)], [-3, "-3", "+3"]);
});

test("a step is in its column, and in none outside of all", () => {
  const ns = ranks([[1, 2, 3]], [1, 2, 3], { stepsPerColumn: 4 }); // 10 to 13, 14 to 17, 18 to 21
  same([9, 10, 13, 14, 17, 21, 22].map(ns.rankColumnAt), [-1, 0, 0, 1, 1, 2, -1]);
});

test("without a crosshair the newest column counts that half of the ranks have", () => {
  const none = -Infinity;
  const ns = ranks([[1, 1, 1], [1, 1, none], [1, 1, none]], [1, 1, 1]);
  assert.equal(ns.rankColumn(), 1);
  ns.crosshair = () => 12;
  assert.equal(ns.rankColumn(), 2);
});

test("rows stand by host with a gap between two, and who has sent nothing is last", () => {
  const ns = ranks([[1], [1], [1], [1]], [1], { hosts: ["b", "", "a", "b"], present: [true, false, true, true] });
  const rows = ns.layRanks(46); // less two gaps of 3: 10 for each
  same(rows.map(({ rank, top, isNew }) => [rank, top, isNew]), [[0, 0, true], [3, 10, false], [2, 23, true], [1, 36, true]]);
  assert.equal(ns.ranks.height, 46);
  same([0, 9.9, 10, 21, 23, 45.9, 46].map((y) => ns.rankRowAt(y)?.rank ?? null), [0, 0, 3, null, 2, 1, null]);
});

test("rows by distance begin with NaN, then what was farthest, whichever way; by time with the slowest", () => {
  const ns = ranks([[1, 1], [1, 2], [0.125, 1], [NaN, 1]], [1, 1], { times: { p50: [0.1, 0.3, null, 0.2] } });
  ns.view.rankOrder = "distance";
  same(ns.layRanks(40).map(({ rank }) => rank), [3, 2, 1, 0]);
  ns.view.rankOrder = "time";
  same(ns.layRanks(40).map(({ rank }) => rank), [1, 3, 0, 2]);
  ns.view.rankOrder = "constructor"; // an address may say anything
  same(ns.layRanks(40).map(({ rank }) => rank), [0, 1, 2, 3]);
});

test("rows are no lower than four pixels and no higher than 48", () => {
  const many = Array.from({ length: 200 }, () => [1]);
  const ns = ranks(many, [1]);
  ns.layRanks(100);
  assert.equal(ns.ranks.height, 800);
  const few = ranks([[1], [1]], [1]);
  few.layRanks(1000);
  assert.equal(few.ranks.height, 96);
});
