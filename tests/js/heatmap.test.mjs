// Codes of the heatmap and how they are pooled (ns_50), and its names grouped until they fit (ns_51).
import assert from "node:assert/strict";
import { test } from "node:test";
import { fillHeatmap, open, same } from "./page.mjs";

const { ns } = open(["00", "10", "20", "49", "50"]);
const NAN = 1, INF = 2, BOTH = 3, ZERO = 4, FIRST = 5, LAST = 65535;

test("codes stand for 10^-46 to 10^39, in equal steps of the logarithm", () => {
  assert.equal(ns.codeValue(ZERO), 0);
  const decades = (code) => Math.log10(ns.codeValue(code));
  assert.ok(Math.abs(decades(FIRST) + 46) < 1e-9);
  assert.ok(Math.abs(decades(LAST) - 39) < 1e-9);
  assert.ok(Math.abs(decades(FIRST + (LAST - FIRST) / 2) + 3.5) < 1e-9);
  // 1.0 as dashboard/live/live_view.py: cell_codes makes it: 5 + round(46 / 85 * 65530).
  assert.ok(Math.abs(ns.codeValue(35468) - 1) < 0.0015);
});

test("only NaN and Inf are bad", () => {
  same([0, 1, 2, 3, 4, 5, LAST].map(ns.isBadCode), [false, true, true, true, false, false, false]);
});

test("pooling keeps every bad bit, else the largest value", () => {
  const codes = [0, NAN, INF, BOTH, ZERO, FIRST, 1000, LAST];
  for (const a of codes) {
    for (const b of codes) {
      const bad = new Set([a, b].flatMap((code) => ({ 1: ["nan"], 2: ["inf"], 3: ["nan", "inf"] })[code] ?? []));
      const expected = bad.size ? (bad.has("nan") ? 1 : 0) + (bad.has("inf") ? 2 : 0) : [a, b].sort((x, y) => y - x)[0];
      assert.equal(ns.poolCodes(a, b), expected, `${a} and ${b}`);
    }
  }
});

test("what was not measured is below zero, and zero below every value", () => {
  same([[0, ZERO], [ZERO, FIRST], [0, FIRST], [0, 0]].map(([a, b]) => ns.poolCodes(a, b)), [ZERO, FIRST, FIRST, 0]);
});

test("a scale that is nearly the same stays, so that only new columns are painted", () => {
  const before = { statistic: "grad_norm", low: 1000, high: 2000 };
  const kept = (next) => {
    const { low, high } = ns.withSteadyScale({ statistic: "grad_norm", stepsPerColumn: 4, ...next }, before);
    return [low, high];
  };
  same(kept({ low: 1020, high: 1980 }), [1000, 2000]);
  same(kept({ low: 1030, high: 2000 }), [1030, 2000]);
  same(kept({ low: 1000, high: 2030 }), [1000, 2030]);
  same(kept({ low: 1010, high: 2010, statistic: "norm" }), [1010, 2010]);
  same(kept({ low: null, high: null }), [null, null]);
  // Small moves do not add up: the scale is at most so far from the one that was sent.
  let fields = before;
  for (let at = 1; at <= 10; at++) fields = ns.withSteadyScale({ ...before, low: 1000 + 15 * at, high: 2000 }, fields);
  assert.ok(Math.abs(fields.low - 1150) <= 20);
  assert.equal(ns.withSteadyScale(before, null), before);
  assert.equal(ns.withSteadyScale({ ...before, stepsPerColumn: 4 }, before).stepsPerColumn, 4);
});

test("a module path shows what is inside of it, and one without rows shows all", () => {
  const page = open(["00", "10", "20", "50"]);
  fillHeatmap(page.ns, ["a", "a.b", "ab", "a.b.c"]);
  page.ns.focusRows("a");
  same([page.ns.heatmap.shown, page.ns.heatmap.focus], [[0, 1, 3], "a"]);
  page.ns.focusRows("no.such");
  same([page.ns.heatmap.shown, page.ns.heatmap.focus], [[0, 1, 2, 3], ""]);
});

// The names that stand beside the heatmap when its picture is so many lines high.
const LINE_PX = 12;
function labels(rows, lines, { kinds, unfolded = [], isNarrow = false } = {}) {
  const page = open(["00", "10", "20", "49", "50", "51", "53", "54"]);
  page.ns.isNarrow = () => isNarrow;
  page.ns.templates = { statistics: [{ id: "grad_norm", of: "layer", scale: "", unit: "" }], cividis: [] };
  page.ns.hasHistograms = () => true;
  page.ns.heatmapBox = () => ({ l: 0, t: 0, w: 100, h: lines * LINE_PX });
  page.byId("heatmap-select").options = [];
  fillHeatmap(page.ns, rows, { kinds });
  page.ns.heatmap.fields.statistics = ["grad_norm"];
  page.ns.view.unfolded = unfolded;
  page.ns.startHeatmapRows();
  page.ns.emit("heatmap", page.ns.heatmap);
  return page.byId("heatmap-labels").children;
}
const texts = (buttons) => buttons.map((button) => button.textContent.replace(/^[\u25b8\u25be\u00b7] /, "").replace(/ \u203a$/, ""));

const BLOCKS = Array.from({ length: 20 }, (_, block) => [`blocks.${block}.attn`, `blocks.${block}.mlp`]).flat();
const MODEL = ["embed", ...BLOCKS, "head"];

test("names that all fit are all there, one a row", () => {
  const found = labels(MODEL, MODEL.length);
  same(texts(found), MODEL);
  same(found.map((button) => button.classList.contains("ns-group")), MODEL.map(() => false));
});

test("names are grouped by the finest part of their path that fits", () => {
  const found = labels(MODEL, MODEL.length - 1);
  same(texts(found), ["embed", ...Array.from({ length: 20 }, (_, block) => `blocks.${block}`), "head"]);
  same(found.map((button) => button.classList.contains("ns-group")), [false, ...new Array(20).fill(true), false]);
});

test("rather than a handful of groups some finer names are left out, the last one never", () => {
  const found = labels(MODEL, 10);
  const shown = texts(found);
  assert.ok(shown.length > 3 && shown.length <= 10);
  assert.ok(shown.every((name) => MODEL.includes(name) || /^blocks\.\d+$/.test(name)));
  assert.equal(shown.at(-1), "head");
  const heights = tops(found);
  for (let at = 1; at < heights.length; at++) assert.ok(heights[at] - heights[at - 1] >= LINE_PX - 1e-9);
});

test("the last name takes the place of one that is too near", () => {
  // Two pixels a row: blocks.16 would stand at 68, head at 78.
  same(texts(labels(MODEL, 7)), ["embed", "blocks.4", "blocks.7", "blocks.10", "blocks.13", "head"]);
});

const tops = (found) => found.map((button) => Number.parseFloat(button.style.top));

test("a label stands in the middle of its rows, and whole beside the picture", () => {
  assert.deepEqual(tops(labels(["a", "b", "c"], 6)), [12 - 6, 36 - 6, 60 - 6]);
  const found = labels(["a.x", "a.y", "b"], 2); // two lines for three rows: the middles are 4, 12 and 20
  assert.deepEqual(texts(found), ["a.x", "b"]);
  assert.deepEqual(tops(found), [0, 12]);
});

test("on a phone names are grouped until they are short, as long as several groups are left", () => {
  same(texts(labels(MODEL.slice(0, 7), 40, { isNarrow: true })), ["embed", "blocks.0", "blocks.1", "blocks.2"]);
  same(texts(labels(["blocks.0.attn", "blocks.0.mlp"], 40, { isNarrow: true })), ["blocks.0.attn", "blocks.0.mlp"]);
  same(texts(labels(MODEL, 10, { isNarrow: true })), texts(labels(MODEL, 10)));
});

test("rows that are not neighbours are groups of their own", () => {
  const rows = ["a.0", "a.1", "b.0", "b.1", "c.0", "c.1", "a.2", "a.3", "d.0", "d.1", "e.0", "e.1"];
  same(texts(labels(rows, 6)), ["a", "b", "c", "a", "d", "e"]);
});

test("parameters of an unfolded layer stand below it, by the rest of their names, and are never grouped", () => {
  const rows = ["a.0", "a.0.weight", "a.0.bias", "a.1"];
  const kinds = ["layer", "parameter", "parameter", "layer"];
  const found = labels(rows, 4, { kinds, unfolded: ["a.0"] });
  same(found.map((button) => button.textContent), ["\u25be a.0", "\u00b7 weight", "\u00b7 bias", "\u25b8 a.1"]);
});
