// The view Layers: which lines there are (ns_53), and what their cells say (ns_54).
import assert from "node:assert/strict";
import { test } from "node:test";
import { fillHeatmap, near, open, random, same } from "./page.mjs";

const FIRST = 5, CODES = 65530, DECADES = 85;
const perDecade = CODES / DECADES;

function layers(rows, view = {}, heatmap = {}) {
  const page = open(["00", "10", "20", "50", "53", "54", "57"]);
  page.ns.crosshair = () => null;
  page.ns.drawHeatmap = () => {};
  fillHeatmap(page.ns, rows, heatmap);
  Object.assign(page.ns.view, view);
  page.lines = () => page.ns.layersLines().map((line) => `${"  ".repeat(line.depth)}${line.label}`);
  return page;
}

// The two folds of one module list: a group for each path that ends in a number.
const ROWS = ["embed", "blocks.0.attn", "blocks.0.mlp", "blocks.1.attn", "blocks.1.mlp", "norm.a", "norm.b", "head.out"];

test("lines stand under the numbered paths, or the first parts, that have more than one row", () => {
  same(layers(ROWS).lines(), [
    "embed", "blocks.0", "  attn", "  mlp", "blocks.1", "  attn", "  mlp", "norm", "  a", "  b", "head.out",
  ]);
});

test("numbered paths inside of others are groups inside of groups", () => {
  same(layers(["b.0.e.0.w", "b.0.e.0.v", "b.0.e.1.w", "b.0.e.1.v"]).lines(), [
    "b.0", "  e.0", "    w", "    v", "  e.1", "    w", "    v",
  ]);
});

test("a group has the rows inside of it and the sum of their tensors", () => {
  const { ns } = layers(ROWS, {}, { tensors: [1, 2, 3, 4, 5, 6, 7, 8] });
  const [, group] = ns.layersLines();
  same([group.path, group.rows, group.tensors, group.isGroup], ["blocks.0", [1, 2], 5, true]);
});

test("a module that has rows inside is one line, with its own value", () => {
  const { ns } = layers(["a", "a.x", "a.y"], {}, { tensors: [9, 4, 5], kinds: ["module", "module", "module"] });
  const lines = ns.layersLines();
  same(lines.map(({ path, rows, tensors }) => [path, rows, tensors]), [["a", [0], 9], ["a.x", [1], 4], ["a.y", [2], 5]]);
});

test("folded groups hide what is inside; after * all are folded but those that are named", () => {
  same(layers(ROWS, { folded: ["blocks.0"] }).lines(), [
    "embed", "blocks.0", "blocks.1", "  attn", "  mlp", "norm", "  a", "  b", "head.out",
  ]);
  same(layers(ROWS, { folded: ["*"] }).lines(), ["embed", "blocks.0", "blocks.1", "norm", "head.out"]);
  same(layers(ROWS, { folded: ["*", "norm"] }).lines(), ["embed", "blocks.0", "blocks.1", "norm", "  a", "  b", "head.out"]);
});

test("a filter shows the rows that it names, and parameters with their layer", () => {
  const rows = ["a.0", "a.0.weight", "b.0", "b.0.weight", "c.bias"];
  const kinds = ["layer", "parameter", "layer", "parameter", "layer"];
  const paths = (filter) => layers(rows, { filter }, { kinds }).ns.layersLines().map((line) => line.path);
  same(paths("^A\\.0$"), ["a.0", "a.0.weight"]); // letters of either size
  same(paths("weight"), ["a.0.weight", "b.0.weight"]);
  same(paths("^c|^b\\.0$"), ["b.0", "b.0.weight", "c.bias"]);
  same(paths("nothing"), []);
});

test("how many of how many are shown does not count parameters", () => {
  const { ns } = layers(["a", "a.weight", "b"], { filter: "a" }, { kinds: ["layer", "parameter", "layer"] });
  ns.layersLines();
  same(ns.heatmap.matched, [1, 2]);
});

test("a filter that is no pattern is an error, and hides nothing", () => {
  const page = layers(ROWS, { filter: "blocks.(" });
  assert.equal(page.ns.layersLines().filter((line) => !line.isGroup).length, ROWS.length);
  assert.match(page.ns.layersProblem(), /Unterminated group/);
});

const pinned = (view, heatmap) => layers(ROWS, { pinnedRows: ["norm.b", "blocks.0.mlp", "gone"], ...view }, heatmap).lines();

test("pinned rows come first, by their whole names, and no second time below", () => {
  same(pinned(), [
    "norm.b", "blocks.0.mlp", "embed", "blocks.0", "  attn", "blocks.1", "  attn", "  mlp", "norm", "  a", "head.out",
  ]);
});

test("pinned rows stay whatever is filtered, folded and sorted", () => {
  same(pinned({ filter: "^embed" }), ["norm.b", "blocks.0.mlp", "embed"]);
  same(pinned({ filter: "nothing" }), ["norm.b", "blocks.0.mlp"]);
  same(pinned({ folded: ["*"] }), ["norm.b", "blocks.0.mlp", "embed", "blocks.0", "blocks.1", "norm", "head.out"]);
  const cells = ROWS.map((_, row) => [100 + row]);
  same(pinned({ sort: "value" }, { cells }).slice(0, 4), ["norm.b", "blocks.0.mlp", "head.out", "norm.a"]);
});

test("a pinned row changes how many of how many are shown in nothing", () => {
  const { ns } = layers(ROWS, { pinnedRows: ["norm.b"], filter: "^embed" });
  ns.layersLines();
  same(ns.heatmap.matched, [1, ROWS.length]);
});

test("a pinned layer has its parameters below it, where it is unfolded", () => {
  const rows = ["a.0", "a.0.weight", "a.0.bias", "b.0"], kinds = ["layer", "parameter", "parameter", "layer"];
  same(layers(rows, { pinnedRows: ["a.0"], filter: "b" }, { kinds }).lines(), ["a.0", "  weight", "  bias", "b.0"]);
});

const PARAMETERS = ["a.0", "a.0.weight", "a.0.bias", "b.0"], KINDS = ["layer", "parameter", "parameter", "layer"];
const pinnedOf = (view) => layers(PARAMETERS, view, { kinds: KINDS }).lines();

test("a pinned parameter has its whole name, and its folded layer shows none of the others", () => {
  same(pinnedOf({ pinnedRows: ["a.0.bias"] }), ["a.0.bias", "a.0", "b.0"]);
  same(pinnedOf({ pinnedRows: ["a.0.bias"], unfolded: ["a.0"] }), ["a.0.bias", "a.0", "  weight", "b.0"]);
  same(pinnedOf({ pinnedRows: ["a.0.bias"], sort: "value" }), ["a.0.bias", "a.0", "b.0"]);
});

test("a parameter that is pinned with its layer is there once", () => {
  same(pinnedOf({ pinnedRows: ["a.0", "a.0.bias"] }), ["a.0", "a.0.bias", "b.0"]);
  same(pinnedOf({ pinnedRows: ["a.0", "a.0.bias"], unfolded: ["a.0"] }), ["a.0", "  weight", "a.0.bias", "b.0"]);
});

test("the page asks for the parameters of a layer in which one is pinned, in this view only", () => {
  const { ns } = layers(PARAMETERS, { pinnedRows: ["a.0.bias", "a.0.weight", "own"], unfolded: ["b.0"], tab: "layers" }, { kinds: KINDS });
  same(ns.askedLayers(), ["b.0", "a.0", ""]);
  ns.view.tab = "overview";
  same(ns.askedLayers(), ["b.0"]);
});

test("rows are pinned one after the other, and taken back; what is no row of its own cannot be", () => {
  const { ns } = layers(ROWS);
  const line = (path) => ns.layersLines().find((each) => each.path === path);
  ns.togglePinned(line("norm.a"));
  ns.togglePinned(line("embed"));
  ns.togglePinned(line("blocks.0")); // a group
  same(ns.view.pinnedRows, ["norm.a", "embed"]);
  ns.togglePinned(line("norm.a"));
  same(ns.view.pinnedRows, ["embed"]);
  const module = layers(["a", "a.x", "a.y"], {}, { kinds: ["module", "module", "module"] }).ns;
  module.togglePinned(module.layersLines()[0]); // a group that is a row
  same(module.layersLines().map(({ path, isPinned, isGroup }) => [path, isPinned, isGroup]), [
    ["a", true, false], ["a", false, true], ["a.x", false, false], ["a.y", false, false],
  ]);
});

test("pinned rows stay at the top while the rest scrolls below them", () => {
  const rows = Array.from({ length: 40 }, (_, row) => `r${String(row).padStart(2, "0")}`);
  const page = layers(rows, { pinnedRows: ["r30", "r20"] });
  page.load("55");
  const { ns } = page;
  ns.isFlow = () => false;
  const seen = (scrollTop) => {
    page.byId("layers-tree").scrollTop = scrollTop;
    ns.chooseLines({ t: 0, l: 0, h: 15 * 10 });
    const paths = ns.visibleLines().map((line) => line.path);
    same(paths.map((_, at) => ns.lineAt(at).path), paths); // what the pointer meets is what is drawn
    return paths;
  };
  same(seen(0), ["r30", "r20", "r00", "r01", "r02", "r03", "r04", "r05", "r06", "r07"]);
  same(seen(15 * 20), ["r30", "r20", "r21", "r22", "r23", "r24", "r25", "r26", "r27", "r28"]);
  same(seen(1e6), ["r30", "r20", "r32", "r33", "r34", "r35", "r36", "r37", "r38", "r39"]);
  ns.view.pinnedRows = rows.slice(0, 30); // more than the half of what fits scroll away
  same(seen(15 * 30), ["r00", "r01", "r02", "r03", "r04", "r35", "r36", "r37", "r38", "r39"]);
});

const SORTED = ["zero", "none", "small", "large", "nan"];
const CELLS = [[4, 4, 4], [0, 0, 0], [900, 100, 110], [50, 5000, 9000], [300, 2, 1]];
const sortedBy = (sort, step = null) => {
  const page = layers(SORTED, { sort }, { cells: CELLS });
  page.ns.crosshair = () => step;
  return page.ns.layersLines().map((line) => line.path);
};

test("by value, the newest or the one under the crosshair: bad ones first, unmeasured ones last", () => {
  same(sortedBy("value"), ["nan", "large", "small", "zero", "none"]);
  same(sortedBy("value", 0), ["small", "nan", "large", "zero", "none"]);
});

test("by change of the last two measured cells: one that has turned bad or good is the largest", () => {
  const cells = [[4, 4, 4], [0, 0, 7], [0, 100, 110], [0, 5000, 9000], [0, 300, 1]];
  const { ns } = layers(["same", "once", "ten", "much", "turned"], { sort: "change" }, { cells });
  same(ns.layersLines().map((line) => line.path), ["turned", "much", "ten", "same", "once"]);
});

test("by the first bad cell: the earliest first", () => {
  const cells = [[9, 9, 9], [9, 9, 1], [2, 9, 9], [0, 3, 1]];
  const { ns } = layers(["fine", "last", "first", "second"], { sort: "bad" }, { cells });
  same(ns.layersLines().map((line) => line.path), ["first", "second", "last", "fine"]);
});

test("a sorted list settles: it is worked out again only after a while", () => {
  const page = layers(["a", "b"], { sort: "value" }, { cells: [[10], [20]] });
  const names = () => page.ns.layersLines().map((line) => line.path);
  same(names(), ["b", "a"]);
  page.ns.arrays.set("heatmap/codes", Uint16Array.of(30, 20));
  page.ns.showArrays();
  page.pass(1000);
  same(names(), ["b", "a"]);
  page.pass(1001);
  same(names(), ["a", "b"]);
});

test("an order that there is not is the model's", () => {
  same(layers(ROWS, { sort: "constructor" }).lines(), layers(ROWS).lines());
});

test("a group's cells are the largest of its rows, and bad where one is", () => {
  const { ns } = layers(["a.0.x", "a.0.y"], {}, { cells: [[10, 0, 4, 1, 9], [7, 6, 0, 2, 1]] });
  const [group] = ns.layersLines();
  same(ns.lineCodes(group), Uint16Array.of(10, 6, 4, 3, 1));
  same(ns.lineCodes(ns.layersLines()[2]), Uint16Array.of(7, 6, 0, 2, 1));
});

test("a message's codes replace those that were worked out before", () => {
  const { ns } = layers(["a", "b"], {}, { cells: [[10], [20]] });
  const [line] = ns.layersLines();
  assert.equal(ns.lineCodes(line)[0], 10);
  ns.arrays.set("heatmap/codes", Uint16Array.of(11, 21));
  ns.showArrays();
  assert.equal(ns.lineCodes(line)[0], 11);
});

test("a row's own range is its 1st to 99th percentile, without what is bad or not measured", () => {
  const { ns } = layers(["a"]);
  const codes = Uint16Array.from({ length: 101 }, (_, number) => 1000 + 10 * number).reverse();
  same(ns.ownRange(codes), [1010, 1990]);
  same(ns.ownRange(Uint16Array.of(0, 1, 2, 3, 4, ...codes)), [1010, 1990]);
  same(ns.ownRange(Uint16Array.of(7, 7, 7)), [7, 8]); // never empty
  same(ns.ownRange(Uint16Array.of(0, 4, 1)), [FIRST, FIRST + 1]);
});

test("relative to its row a value lies where it lies between the row's ends", () => {
  const cells = [[1000, 2000, 1500, 1250, 0, 1, 4]];
  const { ns } = layers(["a"], { scale: "row" }, { cells });
  const place = (share) => FIRST + Math.round(share * CODES);
  same(ns.scaledCodes(ns.layersLines()[0]), Uint16Array.of(place(0), place(1), place(0.5), place(0.25), 0, 1, 4));
});

// From a quarter (the lowest colour) to 16 times (the highest) the median of the row's earlier values.
function pastShares(codes) {
  return codes.map((code, at) => {
    if (code < FIRST) return null;
    const before = codes.slice(0, at).filter((each) => each >= FIRST).sort((a, b) => a - b);
    const middle = before.length >> 1;
    const median = !before.length ? code : before.length % 2 ? before[middle] : (before[middle - 1] + before[middle]) / 2;
    const factor = 10 ** ((code - median) / perDecade);
    return Math.max(0, Math.min(1, Math.log2(4 * factor) / Math.log2(64)));
  });
}

test("relative to its past a value that stays is at a third, and one of 16 times at the top", () => {
  const sixteen = Math.round(Math.log10(16) * perDecade), quarter = Math.round(Math.log10(4) * perDecade);
  const cells = [[30000, 30000, 30000 + sixteen, 30000 - quarter, 1, 0, 30000]];
  const { ns } = layers(["a"], { scale: "past" }, { cells });
  const shares = [...ns.scaledCodes(ns.layersLines()[0])].map((code) => (code < FIRST ? code : (code - FIRST) / CODES));
  near(shares, [1 / 3, 1 / 3, 1, 0, 1, 0, 1 / 3], 1e-3);
});

test("relative to its past each cell is compared with the median of all before it", () => {
  const next = random(5);
  const codes = Array.from({ length: 150 }, () => (next() < 0.15 ? Math.floor(5 * next()) : 30000 + Math.floor(1500 * next())));
  const { ns } = layers(["a"], { scale: "past" }, { cells: [codes] });
  const found = [...ns.scaledCodes(ns.layersLines()[0])];
  pastShares(codes).forEach((share, at) => {
    if (share === null) assert.equal(found[at], codes[at]);
    else assert.ok(Math.abs((found[at] - FIRST) / CODES - share) < 1e-4, `column ${at}`);
  });
});

test("the picture has the lines on screen, and the ends of the scale that is chosen", () => {
  const page = layers(["a", "b", "c"], {}, { cells: [[10, 11], [20, 21], [30, 31]] });
  page.ns.visibleLines = () => page.ns.layersLines().slice(1);
  Object.assign(page.ns.heatmap.fields, { low: 12, high: 29 });
  const { row, count, low, high } = page.ns.layersPicture();
  same([row(0), row(1), count, low, high], [Uint16Array.of(20, 21), Uint16Array.of(30, 31), 2, 12, 29]);
  page.ns.view.scale = "row";
  const relative = page.ns.layersPicture();
  same([relative.low, relative.high], [FIRST, FIRST + CODES]);
});

test("values are those of the column that the crosshair is in, else of the newest", () => {
  const { ns } = layers(["a"], {}, { cells: [[10, 20, 30]] });
  ns.arrays.set("heatmap/steps", Float64Array.of(0, 10, 20));
  ns.showArrays();
  const at = (step) => { ns.crosshair = () => step; return ns.layersColumn(); };
  same([null, 0, 9, 10, 19, 20, 999].map(at), [2, 0, 0, 1, 1, 2, 2]);
});
