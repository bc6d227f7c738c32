// Runs in lists: the models that a run makes one after the other are one row that unfolds (ns_61, ns_62, ns_65).
import assert from "node:assert/strict";
import { test } from "node:test";
import { open, same } from "./page.mjs";

const RUN = { script: "maml.py", model: "fast", group: "r", series: null, member: null, started: 1, state: "finished" };
function run(id, changes = {}) {
  const { script, state, ...facts } = { ...RUN, ...changes };
  const suffix = facts.member === null ? "" : ` (model ${facts.member + 1})`;
  return { ...facts, run: id, name: facts.name ?? script + suffix, ranks: [{ rank: 0, state }] };
}
const outer = (changes) => run("r", { script: "maml.py (net)", model: "net", ...changes });
// Newest first, as the server lists them.
const copies = (count, changes) => Array.from({ length: count }, (_, n) => run(n ? `c.m${n}` : "c", { series: "c", member: n, started: 2 + n, ...changes })).reverse();

// What a list says, a line each: titles of groups, of series, and names of runs.
function listed(ns, runs, isFound = () => true) {
  return ns.groupRuns(runs, isFound).flatMap(({ script, together, parts, nameOf }) => [
    ...(together ? [`${script}: ${together}`] : []),
    ...parts.flatMap((part) => [...(part.isSeries ? [part.title] : []), ...part.found.map((one) => nameOf(one, part))]),
  ]);
}
const { ns } = open(["00", "20", "61"]);

test("models made one after the other are one series, in their order", () => {
  same(listed(ns, copies(3)), ["maml.py · models 1 to 3", "model 1", "model 2", "model 3"]);
  assert.equal(ns.countRuns(copies(50), 50), "1 run, 50 models");
});

test("an outer model beside its copies is one run of the process, and the copies are the other", () => {
  const runs = [...copies(2, { script: "maml.py (fast)" }), outer()];
  same(listed(ns, runs), ["maml.py: 2 runs of one process", "net", "fast · models 1 to 2", "model 1", "model 2"]);
  assert.equal(ns.countRuns(runs, 3), "2 runs, 3 models");
});

test("two series of one process are not mixed, and what has one model is no series", () => {
  const more = [run("d.m1", { series: "d", member: 1, model: "head", started: 9 }), run("d", { series: "d", member: 0, model: "head", started: 8 })];
  same(listed(ns, [...more, ...copies(2)]).filter((line) => line.includes("models")), ["fast · models 1 to 2", "head · models 1 to 2"]);
  same(listed(ns, [run("e", { series: "e", member: 4 })]), ["maml.py (model 5)"]);
});

test("what a search finds stays below the titles of its group and series", () => {
  const runs = [...copies(40, { script: "maml.py (fast)" }), outer()];
  const isFound = ({ member }) => member === 3 || member === 39;
  same(listed(ns, runs, isFound), ["maml.py: 2 runs of one process", "fast · 2 of 40 models", "model 4", "model 40"]);
  same(listed(ns, runs, ({ member }) => member === 3), ["maml.py: 2 runs of one process", "fast · 1 of 40 models", "model 4"]);
  assert.equal(ns.countRuns(runs, 2), "2 of 41 models");
  same(listed(ns, runs, () => false), []);
});

test("a series of which models are gone says how many there are", () => {
  same(listed(ns, copies(5).filter(({ member }) => member !== 2))[0], "maml.py · 4 models");
});

test("runs that were named keep their names, and single ones are counted as runs", () => {
  const sweep = ["0.1", "0.2"].map((rate) => run(`lr-${rate}`, { name: `lr ${rate}`, group: "s" }));
  same(listed(ns, sweep), [": 2 runs of one process", "lr 0.2", "lr 0.1"]);
  same([ns.countRuns(sweep, 2), ns.countRuns(sweep, 1), ns.countRuns([sweep[0]], 1)], ["2 runs", "1 of 2 runs", "1 run"]);
});

// The rows of the table of all runs.
function table(runs, { address = "/?tab=runs", total = runs.length } = {}) {
  const page = open(["00", "20", "61"], { address });
  const { ns, window } = page;
  window.setInterval = () => 0;
  const drawn = [], steps = [];
  Object.assign(ns, { mayChange: () => true, visible: String });
  page.load("64", "65");
  ns.makeRunRow = (id) => ({ row: ns.make("tr", id), cells: {}, parts: {} });
  ns.drawRunRow = (made, data) => { made.shown = data; drawn.push(data.label ?? data.name); steps.push(data.step); };
  ns.view.tab = "runs";
  page.byId("runs-search").firstElementChild = { value: "" };
  const body = page.byId("runs-body");
  body.insertBefore = (row, before) => body.children.splice(before ? body.children.indexOf(before) : body.children.length, 0, row);
  ns.takeRunRows({ is_whole: true, total, rows: runs.map((one) => ({ ...one, state: one.ranks[0].state, best: one.member, step: 10 * one.member, critical: 1, warnings: 0, written: 5, is_read: true, note: "" })) });
  return { ...page, drawn, steps, find: (text) => { ns.view.find = text; drawn.length = 0; ns.drawRuns(); return drawn; } };
}

test("the table has one row for a series, until something is searched for", () => {
  const page = table([...copies(50, { state: "running" }), ...copies(9, { group: "old", series: "o" })]);
  same(page.drawn, ["maml.py · models 1 to 50", "maml.py · models 1 to 9"]);
  same(page.steps, [490, 80]); // of the newest model, as the state is
  assert.equal(page.byId("runs-count").textContent, "2 runs, 59 models");
  same(page.find("model 5 live"), ["maml.py · 2 of 50 models", "model 5", "model 50"]);
  assert.equal(page.byId("runs-count").textContent, "2 of 59 models");
});

test("a list of runs says what it lacks", () => {
  assert.equal(table(copies(2), { total: 5400 }).byId("runs-count").textContent, "1 run, 2 models (the newest of 5,400; the run picker has all)");
  same([ns.leftOut(300, 300, 200), ns.leftOut(2, 2, 0)], ["; the newest 200 are shown, the search looks at all", ""]);
  assert.ok(ns.leftOut(2000, 5400, 200).endsWith("the search looks at the newest 2,000"));
});

test("a search finds words, numbers from their first digit, a model's id, and pieces of ids", () => {
  const finds = (search) => ns.isFoundBy(search, "20261128-181349-ccf23e44.m13", "20261128-181349-ccf23e44", ["train.py (model 14)", "fast", "ended"]);
  for (const search of ["", "model 14", "1", "ENDED fast", "ccf2", "181349", "20261128-181349-ccf23e44.m13"]) assert.ok(finds(search), search);
  for (const search of ["model 4", "13", "8", "44", "fast live", "m13"]) assert.ok(!finds(search), search);
});
