// Gradient flow, the data of it (ns_57_flow): bars of the values before, who is outside of them, what lasts.
import assert from "node:assert/strict";
import { test } from "node:test";
import { fillHeatmap, near, open, random, same } from "./page.mjs";

const NAN = 1, INF = 2, ZERO = 4, FIRST = 5, CODES = 65530, DECADES = 85;
const DECADE = Math.round(CODES / DECADES);
const names = (entries) => entries.map((entry) => entry.name);

// `cells[row]` has a row's codes by column, from step `first` on.
function flow(cells, { view = {}, rows = cells.map((_, row) => `layer.${row}`), first = 0, size = 1, kinds = rows.map(() => "layer") } = {}) {
  const page = open(["00", "10", "20", "50", "52", "53", "54", "57"]);
  const { ns } = page;
  Object.assign(ns, { crosshair: () => null, drawHeatmap() {}, flowLater() {} });
  ns.templates = { statistics: [{ id: "grad_norm", label: "Gradient norm", unit: "", of: "layer" }] };
  fillHeatmap(ns, rows, { cells, kinds });
  ns.arrays.set("heatmap/steps", Float64Array.from(cells[0], (_, at) => first + at * size));
  ns.showArrays();
  ns.heatmap.fields.stepsPerColumn = size;
  page.body.dataset.tab = "layers";
  Object.assign(ns.view, { flow: true, ...view });
  return page;
}
const steady = (count, code = 30_000) => Array.from({ length: count }, () => code);

test("a bar is p5, median and p95 of the values before, as numpy has them", () => {
  const [entry] = flow([[100, 300, 200, 500, 400, 9000]]).ns.flow().entries; // before: 100 to 500
  near([entry.low, entry.median, entry.high], [120, 300, 480], 1e-9);
  same([entry.now, entry.count, entry.side], [9000, 5, 1]);
});

test("who is above or below of its bar is listed by its distance, and who is inside is not", () => {
  const past = [29_900, 30_000, 30_100, 30_000, 30_000];
  const cells = [33_000, 30_050, 28_000, 40_000, 20_000].map((now) => [...past, now]);
  const { above, below, entries } = flow(cells).ns.flow();
  same([names(above), names(below)], [["layer.3", "layer.0"], ["layer.4", "layer.2"]]);
  same(entries.map((entry) => entry.side), [1, 0, -1, 1, -1]);
});

test("fewer than five values before have no bar, and nobody is outside of it", () => {
  const four = flow([[10, 10, 10, 10, 60_000]]).ns, five = flow([[10, 10, 10, 10, 10, 60_000]]).ns;
  same([four.flow().entries[0].median, four.flow().above.length], [null, 0]);
  same([five.flow().entries[0].median, five.flow().above.length], [10, 1]);
  assert.match(four.flowWords(four.flow().entries[0]), /too few values before it for a bar$/);
});

test("NaN, Inf, zero and what was not measured are no values of a bar", () => {
  const [entry] = flow([[NAN, 10, 0, 20, INF, 30, ZERO, 40, 50, 35]]).ns.flow().entries;
  same([entry.count, entry.median], [5, 30]);
});

test("a bar is of the newest 200 measured columns before", () => {
  const [entry] = flow([[...steady(300, 60_000), ...steady(200, 100), 0, 0, 100]]).ns.flow().entries;
  same([entry.count, entry.low, entry.high], [200, 100, 100]);
});

test("without a step the newest column counts of which something was measured", () => {
  const { ns } = flow([[10, 20, 30, 0, 0], [0, 0, 0, 0, 0]], { first: 100 });
  const shown = ns.flow();
  same([shown.column, shown.entries[0].now, shown.absent], [2, 30, 1]);
});

test("a step, or else the crosshair's, chooses the column that it is in", () => {
  const at = (step) => flow([[10, 20, 30]], { first: 100, size: 4, view: { at: step } }).ns.flow().column;
  same([0, 100, 103, 104, 111, 500].map(at), [0, 0, 0, 1, 2, 2]);
  const { ns } = flow([[10, 20, 30]], { first: 100 });
  ns.crosshair = () => 101;
  assert.equal(ns.flow().column, 1);
  ns.view.at = 100;
  assert.equal(ns.flow().column, 0);
});

test("what lasts is told since its first step: bad of either kind, zero alone, over steps that were not measured", () => {
  const { bad, zero } = flow([
    [10, NAN, INF, 0, NAN], [NAN, 10, 10, 10, INF], [ZERO, 0, ZERO, ZERO, ZERO], [NAN, NAN, NAN, ZERO, ZERO], steady(5),
  ], { first: 50 }).ns.flow();
  same(bad.map(({ name, since }) => [name, since]), [["layer.0", 51], ["layer.1", 54]]);
  same(zero.map(({ name, since }) => [name, since]), [["layer.2", 50], ["layer.3", 53]]);
});

test("the course is what pools all rows of a column", () => {
  same([...flow([[10, NAN, 0, ZERO], [20, 30, 0, 7]]).ns.flow().course], [20, NAN, 0, 7]);
});

test("the shape is the decades from the first quarter of the layers to the last, by their middles", () => {
  const column = [0, 0, 0, 1, 1, 1, 2, 4, 2].map((decade) => [20_000 + decade * DECADE]);
  near([flow(column).ns.flow().shape], [3], 0.01); // of two each: 0 and 0, 4 and 2
  assert.equal(flow(column.slice(0, 7)).ns.flow().shape, null);
  const more = [...column, [NAN], [0]]; // they are at no depth
  near([flow(more).ns.flow().shape], [3], 0.01);
});

test("parameters are in their layer, and a filter leaves what it names", () => {
  const cells = [[10], [20], [30]], rows = ["a", "a.weight", "b"], kinds = ["layer", "parameter", "layer"];
  same(names(flow(cells, { rows, kinds }).ns.flow().entries), ["a", "b"]);
  same(names(flow(cells, { rows, kinds, view: { filter: "^b" } }).ns.flow().entries), ["b"]);
});

test("words say the value, its place and its bar", () => {
  const { ns } = flow([[...steady(5), 40_000], [...steady(5), 30_000], [...steady(5), 20_000], [...steady(5), NAN]]);
  const words = ns.flow().entries.map(ns.flowWords);
  assert.match(words[0], /, above its bar; median \S+, p5\u2013p95 \S+ to \S+$/);
  assert.match(words[1], /, in its bar; /);
  assert.match(words[2], /, below its bar; /);
  assert.match(words[3], /^NaN; median/);
});

test("the table has every row at any step, and says where a step is past all columns", () => {
  const { ns } = flow([[10, 20], [30, NAN]], { rows: ["", "b"], first: 100 });
  same(ns.flowCells(101, 9).map(([name]) => name), ["(root)", "b"]);
  assert.match(ns.flowCells(101, 9)[1][1], /^NaN/);
  assert.match(ns.flowCells(102, 9)[1][1], /^not measured/);
  assert.equal(ns.flowCells(101, 1).length, 1);
});

test("the same picture is the same object, until codes, step or rows are others", () => {
  const { ns } = flow([[10, 20, 30]]);
  const made = ns.flow();
  assert.equal(ns.flow(), made);
  ns.view.at = 0;
  const other = ns.flow();
  assert.notEqual(other, made);
  ns.arrays.set("heatmap/codes", Uint16Array.from([10, 20, 40]));
  ns.showArrays();
  assert.notEqual(ns.flow(), other);
});

test("by random codes a bar holds nine of ten of the values before it", () => {
  const next = random(3), past = Array.from({ length: 200 }, () => FIRST + Math.floor(60_000 * next()));
  const [entry] = flow([[...past, 7]]).ns.flow().entries;
  const inside = past.filter((code) => code >= entry.low && code <= entry.high).length;
  assert.ok(Math.abs(inside - 180) <= 1, String(inside));
});

test("the view is gradient flow in Layers alone", () => {
  const { ns, body } = flow([[10]]);
  assert.equal(ns.isFlow(), true);
  body.dataset.tab = "overview";
  assert.equal(ns.isFlow(), false);
});
