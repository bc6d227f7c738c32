// Numbers, texts and the events of the namespace (ns_00).
import assert from "node:assert/strict";
import { test } from "node:test";
import { open, same } from "./page.mjs";

const { ns } = open(["00"]);
const table = (call, cases) => {
  for (const [given, said] of cases) assert.equal(call(...[given].flat()), said, String(given));
};

test("count has thousands apart and no fraction", () => {
  table(ns.count, [[0, "0"], [999.5, "1,000"], [1234567.4, "1,234,567"], [-1234, "-1,234"]]);
});

test("significant has three digits, and powers of ten for what is very small or large", () => {
  table(ns.significant, [
    [0, "0"], [0.001, "0.001"], [0.0009994, "9.99e-4"], [-2.3456, "-2.35"], [1234, "1230"], [99994, "100000"],
    [100000, "1.00e+5"], [-6.02214e23, "-6.02e+23"], [Infinity, "Infinity"], [NaN, "NaN"],
  ]);
});

test("quantity has sizes in the power of 1024 that suits them", () => {
  table((value) => ns.quantity(value, "bytes"), [
    [0, "0"], [1, "1 B"], [1023, "1020 B"], [1024, "1 KiB"], [1536, "1.5 KiB"], [3.25 * 2 ** 20, "3.25 MiB"],
    [2 ** 30, "1 GiB"], [12.34 * 2 ** 40, "12.3 TiB"], [2 ** 51, "2050 TiB"],
  ]);
});

test("quantity has times in s, ms or microseconds", () => {
  table((value) => ns.quantity(value, "s"), [
    [1.23e-5, "12.3 \u00b5s"], [0.00099, "990 \u00b5s"], [0.001, "1 ms"], [0.25, "250 ms"], [1, "1 s"], [59.96, "60 s"],
  ]);
});

test("quantity takes the number of digits and leaves other units to significant", () => {
  assert.equal(ns.quantity(0.012345, "s", 2), "12 ms");
  assert.equal(ns.quantity(0.012345, ""), "0.0123");
});

test("seconds rounds to the unit that says enough", () => {
  table(ns.seconds, [
    [0, "now"], [0.99, "now"], [1, "1 s"], [89.4, "89 s"], [90, "2 min"], [5399, "90 min"], [5400, "2 h"],
    [129599, "36 h"], [129600, "2 d"], [864000, "10 d"],
  ]);
});

test("visible writes the numbers of what cannot be seen", () => {
  table(ns.visible, [
    ["loss \u03b1\u00e9 \u{1f600}", "loss \u03b1\u00e9 \u{1f600}"], // nothing is hidden
    ["a\u202eb", "a[U+202E]b"], // turns the order
    ["a\nb\tc\0", "a[U+000A]b[U+0009]c[U+0000]"],
    ["\u200bx\u200d", "[U+200B]x[U+200D]"], // zero width
    ["\u2028\u2029", "[U+2028][U+2029]"],
    ["tag\u{e0041}", "tag[U+E0041]"],
    ["half\ud800", "half[U+D800]"], // of a pair
  ]);
  assert.equal(ns.visible("\u00ad"), "[U+00AD]"); // asked again: the pattern keeps no place
  assert.equal(ns.visible("\u00ad"), "[U+00AD]");
});

test("setTitle leaves out empty lines and shows what is hidden in the rest", () => {
  const element = {};
  ns.setTitle(element, "one", "", null, "two\u202e");
  assert.equal(element.title, "one\ntwo[U+202E]");
});

test("listeners are called in order, with the value", () => {
  const page = open(["00"]), heard = [];
  page.ns.on("view", (value) => heard.push(["first", value]));
  page.ns.on("view", (value) => heard.push(["second", value]));
  page.ns.emit("view", 7);
  page.ns.emit("nobody listens", 8);
  same(heard, [["first", 7], ["second", 7]]);
});

test("later draws once before the next frame, and again only if asked again", () => {
  const page = open(["00"]);
  let drawn = 0;
  const draw = () => { drawn += 1; };
  for (let asked = 0; asked < 3; asked++) page.ns.later(draw);
  assert.equal(drawn, 0);
  page.frame();
  page.frame();
  assert.equal(drawn, 1);
  page.ns.later(draw);
  page.frame();
  assert.equal(drawn, 2);
});

test("a select's value that a script gave is no choice of the user's", () => {
  const page = open(["00"]);
  page.ns.give("run-select", "a");
  page.ns.give("run-select", "a"); // does not replace what the user may have picked meanwhile
  same(page.props, [["run-select", { value: "a" }]]);
  assert.equal(page.ns.isPicked("run-select", "a"), false);
  assert.equal(page.ns.isPicked("run-select", "old"), false); // told late, of nobody's doing
  same(page.props.at(-1), ["run-select", { value: "a" }]);
});

test("a select is given its properties again only where they have changed: each time renders it anew", () => {
  const { ns, props } = open(["00"]);
  const give = (...ranks) => ns.give("rank-select", "0", { data: ranks });
  give("0");
  give("0");
  give("0", "1");
  give("0", "1");
  same(props, [["rank-select", { data: ["0"], value: "0" }], ["rank-select", { data: ["0", "1"] }]]);
});
