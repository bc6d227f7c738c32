// The rows of events as they arrive (ns_69), and the list that is made of them (ns_68).
import assert from "node:assert/strict";
import { test } from "node:test";
import { open, same } from "./page.mjs";

const NAMES = ["critical", "warning", "info"];
function event(id, step, { order = 0, kind = "nan", message = `${kind} at ${step}`, ...rest } = {}) {
  const row = { id, step, severity: `x ${NAMES[order]}`, severity_order: order, is_last: false, kind, message };
  return { ...row, line: "train.py:10", rank: 0, count: 1, time: `2026-01-01 00:00:${id}`, ...rest };
}

// A page that has asked for the rows of run "r".
function table() {
  const page = open(["00", "20", "68", "69"]);
  page.ns.view.run = "r";
  page.ns.startTable();
  page.ns.emit("message", { run: "r", events: 1 });
  return page;
}
const part = (rows, { low = 0, high = 9, newest = 9, causes = {}, clear = false } = {}) => ({
  run: "r", clear, rows, epoch: "e", low, high, newest, total: rows.length, causes,
});
const asked = (page) => page.props.filter(([id]) => id === "event-rows-scope").map(([, { data }]) => data);

test("rows in order are known only once all of them are here", () => {
  const page = table();
  page.ns.takeRows(part([event("c", 9)], { low: 5 }));
  assert.equal(page.ns.rowsInOrder(), null);
  assert.equal(page.ns.eventRows().length, 1);
  const [first, second] = asked(page);
  same([first.low, first.high, second.low, second.high], [0, 0, 5, 9]); // goes on from where it is
  page.ns.takeRows(part([event("a", 2), event("b", 5)]));
  same(page.ns.rowsInOrder().map((row) => row.id), ["a", "b", "c"]);
  assert.equal(asked(page).length, 2);
});

test("rows go by step, then the severest, then time; some kinds come last whatever their step", () => {
  const page = table();
  const rows = [
    event("1", 7), event("2", 3, { order: 2 }), event("4", 3, { order: 1 }), event("3", 3, { order: 1 }),
    event("5", 0, { is_last: true }), event("6", 3),
  ];
  page.ns.takeRows(part(rows));
  same(page.ns.rowsInOrder().map((row) => row.id), ["6", "3", "4", "2", "1"]);
  page.ns.change({ event: "5" });
  same(page.ns.rowsInOrder().map((row) => row.id), ["6", "3", "4", "2", "1", "5"]);
});

test("a row that comes again replaces the one that was there", () => {
  const page = table();
  page.ns.takeRows(part([event("a", 2)]));
  page.ns.emit("message", { run: "r", events: 2 });
  page.ns.takeRows(part([event("a", 2, { count: 5 })]));
  same(page.ns.eventRows().map((row) => row.count), [5]);
});

test("the rows of another server, or of another run, replace all", () => {
  const page = table();
  page.ns.takeRows(part([event("a", 2)]));
  page.ns.emit("message", { run: "r", events: 2 });
  page.ns.takeRows(part([event("b", 3)], { clear: true }));
  same(page.ns.eventRows().map((row) => row.id), ["b"]);
  page.ns.change({ run: "other" });
  same(page.ns.eventRows(), []);
});

test("an answer about another run is not taken", () => {
  const page = table();
  page.ns.takeRows({ ...part([event("a", 2)]), run: "other" });
  same(page.ns.eventRows(), []);
});

test("one question is on its way at a time, and asked again when nothing comes", () => {
  const page = table();
  page.ns.emit("message", { run: "r", events: 2 });
  assert.equal(asked(page).length, 1);
  page.pass(5001);
  page.ns.emit("message", { run: "r", events: 2 });
  assert.equal(asked(page).length, 2);
});

// The list with these rows: `list()` has the ids as they stand, what followed from another one behind "> ".
function list(rows, { causes = {}, view = {} } = {}) {
  const page = table();
  page.ns.openEvent = (id) => page.ns.change({ event: id });
  page.ns.startEventList();
  Object.assign(page.ns.view, view);
  const body = page.byId("event-table").children[1];
  body.clientHeight = 2000;
  page.ns.takeRows(part(rows, { causes }));
  page.search = page.byId("events-search").children[0];
  page.entries = () => { page.frame(); return body.children[0].children; };
  page.list = () => page.entries().map((row) => (row.classList.contains("ns-consequence") ? "> " : "") + row.dataset.event);
  page.find = (text) => { page.search.value = text; page.search.dispatch("input"); return page.list(); };
  page.count = () => page.byId("events-count").textContent;
  page.press = (key) => { body.dispatch("keydown", { key, preventDefault() {} }); return page.list(); };
  return page;
}

const FAULT = [
  event("a", 10, { message: "NaN in blocks.0.mlp" }),
  event("b", 11, { message: "NaN in the loss", kind: "loss_nan" }),
  event("c", 12, { order: 1, kind: "grad_spike", message: "Gradient spike" }),
  event("d", 4, { order: 1, kind: "leak", message: "Memory leak" }),
];
const CAUSES = { b: "a", c: "a" };

test("what followed from a fault is folded under it", () => {
  const page = list(FAULT, { causes: CAUSES });
  same(page.list(), ["d", "a"]);
  assert.match(page.entries()[1].textContent, /2 more/);
  assert.equal(page.count(), "4 events");
});

test("a fault that is opened shows what followed by step, and closes again", () => {
  const page = list(FAULT, { causes: CAUSES });
  page.list();
  same(page.press("End"), ["d", "a"]);
  same(page.press("ArrowRight"), ["d", "a", "> b", "> c"]);
  same(page.press("ArrowLeft"), ["d", "a"]);
});

test("the event that is open is never folded away", () => {
  same(list(FAULT, { causes: CAUSES, view: { event: "c" } }).list(), ["d", "a", "> b", "> c"]);
});

test("newest first turns the faults around, not what followed from one", () => {
  same(list(FAULT, { causes: CAUSES, view: { newestFirst: true, event: "c" } }).list(), ["a", "> b", "> c", "d"]);
});

test("a search has every word in it and unfolds what it finds", () => {
  const page = list(FAULT, { causes: CAUSES });
  same(page.find("nan"), ["a", "b"]);
  same(page.find("LOSS nan"), ["b"]);
  same(page.find("train.py 12"), ["c"]);
  assert.equal(page.count(), "1 of 4 events");
  assert.equal(page.find("  ").length, 2); // no words
});

test("a search that finds nothing says so", () => {
  const page = list(FAULT);
  page.find("no such");
  assert.equal(page.entries()[0].textContent, "No event matches the search and filters.");
  assert.equal(list([]).entries()[0].textContent, "No events so far.");
});

test("kinds and severities that are muted are left out; what followed from them stands alone", () => {
  same(list(FAULT, { causes: CAUSES, view: { muted: ["warning"] } }).list(), ["a"]);
  same(list(FAULT, { causes: CAUSES, view: { muted: ["nan"] } }).list(), ["d", "b", "c"]);
});

test("chips have the number of every kind, most first, whether shown or not", () => {
  const rows = [...FAULT, event("e", 20, { kind: "leak", order: 1 })];
  const page = list(rows, { view: { muted: ["leak"] } });
  page.list();
  const chips = page.byId("events-kinds").children;
  assert.equal(chips[0].textContent, "leak 2");
  same(chips.map((chip) => chip.getAttribute("aria-pressed")), ["false", "true", "true", "true"]);
});

test("what is about the probe alone is listed and counted where its kind is asked for, last in either order", () => {
  const rows = [event("a", 5), event("b", 1, { is_last: true, kind: "throttled" }), event("c", 9)];
  const page = list(rows);
  same(page.list(), ["a", "c"]);
  assert.equal(page.count(), "2 events");
  const pressed = () => page.byId("events-kinds").children.map((each) => [each.textContent, each.getAttribute("aria-pressed")]);
  same(pressed(), [["nan 2", "true"], ["throttled 1", "false"]]);
  const asked = list(rows, { view: { muted: ["throttled"] } });
  same(asked.list(), ["a", "c", "b"]);
  assert.equal(asked.count(), "3 events");
  same(list(rows, { view: { newestFirst: true, muted: ["throttled"] } }).list(), ["c", "a", "b"]);
  same(list(rows, { view: { event: "b" } }).list(), ["a", "c", "b"]);
});

test("only rows near what is seen are elements", () => {
  const rows = Array.from({ length: 500 }, (_, number) => event(String(number), number));
  const page = list(rows);
  assert.ok(page.list().length < 100);
  assert.equal(page.count(), "500 events");
});

test("the strip counts every event of its steps once, by severity", () => {
  const { ns } = open(["00", "20", "69"]);
  const rows = [
    event("a", 0), event("b", 99, { order: 1, count: 5 }), event("c", 100, { order: 2 }), event("d", 101), event("e", 999, { order: 2 }),
  ];
  const bars = ns.eventDensity(rows, 999, 10);
  same(bars.map(({ first, last }) => [first, last]), Array.from({ length: 10 }, (_, at) => [100 * at, 100 * at + 99]));
  same(bars.filter(({ id }) => id).map(({ first, counts, id }) => [first, counts, id]), [
    [0, [1, 5, 0], "a"], [100, [1, 0, 1], "c"], [900, [0, 0, 1], "e"],
  ]);
  // Never more bars than asked for, no step left out, and a short run has a bar for each step.
  for (const [last, most] of [[0, 10], [4, 10], [1000, 10], [1234567, 240], [7, 0]]) {
    const some = ns.eventDensity([event("z", last)], last, most);
    assert.ok(some.length <= Math.max(1, most), `${last} in ${most}`);
    assert.equal(some.at(-1).last, last);
    assert.equal(some.at(-1).id, "z");
  }
});
