// What the user sees, and the address that says it (ns_20).
import assert from "node:assert/strict";
import { test } from "node:test";
import { open, same } from "./page.mjs";

const SCRIPTS = ["00", "20", "21"];
function at(address) {
  const page = open(SCRIPTS, { address });
  page.ns.startView();
  return page;
}

const DEFAULTS = {
  run: null, rank: 0, tab: "overview", event: null, row: null, first: null, end: null, window: null, paused: false,
  unfolded: [], heatmap: "grad_norm", smooth: 0, log: false, clip: false, muted: [], newestFirst: false, filter: "",
  sort: "", scale: "", folded: [], logged: false, compared: [], find: "", isOwnChoice: false, wide: false, x: "", pinned: [],
  flow: false, at: null, ranks: "grad_norm", rankOrder: "", snapshots: [],
  pinnedRows: [],
};

test("an address that says nothing is the view that the page begins with", () => {
  const { ns } = at("/");
  same(ns.view, DEFAULTS);
  assert.equal(ns.range, null);
});

test("each field is read from the parameter of its name", () => {
  const { ns } = at(
    "/?run=r%20%26&rank=3&tab=layers&event=e%2F1&heatmap=weight_norm&smooth=0.6&log=1&clip=1&mute=leak&mute=info" +
    "&x=clock&pin=gpu&pin=rss&flow=1&at=44&ranks=loss&rankorder=value&wide=1&pinrow=b.0&pinrow=&snapshot=1%2Fs4&snapshot=1%2Fb&snapshot=c" +
    "&order=newest&filter=%5Eb&sort=bad&scale=row&fold=*&fold=blocks.0&logged=1&steps=5-90&open=a.b&compare=x&compare=y&find=two%20words",
  );
  same(ns.view, {
    run: "r &", rank: 3, tab: "layers", event: "e/1", row: null, first: 5, end: 90, window: null, paused: true,
    unfolded: ["a.b"], heatmap: "weight_norm", smooth: 0.6, log: true, clip: true, muted: ["leak", "info"], newestFirst: true,
    filter: "^b", sort: "bad", scale: "row", folded: ["*", "blocks.0"], logged: true, compared: ["x", "y"], find: "two words",
    isOwnChoice: true, x: "clock", pinned: ["gpu", "rss"], flow: true, at: 44, ranks: "loss", rankOrder: "value",
    snapshots: ["1/s4", "1/b"], pinnedRows: ["b.0", ""],
    wide: false, // only of a row
  });
  same(ns.range, [5, 90]);
});

const PATCHES = {
  nothing: {},
  "a run with hard letters": { run: "a&b=c #?%/\u03b1+ ", isOwnChoice: true },
  rank: { rank: 7 },
  tab: { tab: "runs" },
  event: { event: "0123-nan" },
  "the root as row": { row: "" },
  row: { row: "blocks.0.mlp.weight" },
  steps: { first: 0, end: 2, paused: true },
  window: { window: 500 },
  lists: { unfolded: ["a", "b.c"], muted: ["info", "x y"], folded: ["*"], compared: ["r1", "r2", "r3", "r4", "r5"] },
  lines: { smooth: 0.37, log: true, clip: true },
  layers: { filter: "^blocks\\.[0-3]&", sort: "change", scale: "past", pinnedRows: ["blocks.0.attn", "", "a&b"] },
  axis: { x: "relative", pinned: ["a b", "c"] },
  flow: { flow: true, at: 12 },
  ranks: { ranks: "loss", rankOrder: "distance" },
  snapshots: { snapshots: ["1700/epoch 1&", "1700/s4"] },
  "a row over the page": { row: "a", wide: true },
  rest: { heatmap: "update_ratio", newestFirst: true, logged: true, find: "fp16 \u26a0" },
};
for (const [name, patch] of Object.entries(PATCHES)) {
  test(`a view is the same again behind its address: ${name}`, () => {
    const page = at("/");
    page.ns.change(patch);
    const address = page.visited.length ? page.visited.at(-1)[1] : "/";
    const again = at(address);
    same(again.ns.view, { ...DEFAULTS, ...patch });
    again.ns.change({}); // writes nothing that was not there
    same(again.visited, []);
  });
}

test("every field of the view is in one of those", () => {
  const patched = new Set(Object.values(PATCHES).flatMap(Object.keys));
  same(Object.keys(open(SCRIPTS).ns.view).filter((field) => !patched.has(field)), []);
});

test("what an address cannot say is as if it were not there", () => {
  const view = (query) => at("/?" + query).ns.view;
  for (const steps of ["9-3", "4-4", "a-b", "5", "-1-4", "1.5-9", "1e3-2e3", "99999999999999999-999999999999999999"]) {
    assert.equal(view("steps=" + steps).first, null, steps);
    assert.equal(view("steps=" + steps).paused, false, steps);
  }
  for (const rank of ["-1", "x", "2147483648", ""]) assert.equal(view("rank=" + rank).rank, 0, rank);
  assert.equal(view("rank=2147483647").rank, 2147483647);
  for (const [text, smooth] of [["5", 0.99], ["-1", 0], ["abc", 0], ["NaN", 0]]) assert.equal(view("smooth=" + text).smooth, smooth);
  assert.equal(view("newest=0").window, null);
  assert.equal(view("newest=10&steps=1-5").window, null);
  assert.equal(view("event=e&row=r").row, null);
  assert.equal(view("run=" + "r".repeat(100)).run.length, 64);
  same(view("compare=a&compare=a&compare=" + "x".repeat(65) + "&compare=b").compared, ["a", "b"]);
  assert.equal(view(Array.from({ length: 9 }, (_, number) => `compare=${number}`).join("&")).compared.length, 5);
});

test("Back takes back runs, tabs, events, rows and picked snapshots, and nothing else", () => {
  const { ns, visited } = at("/");
  const how = (patch, isByUser) => { ns.change(patch, isByUser); ns.flushAddress(); return visited.at(-1)[0]; };
  assert.equal(how({ tab: "layers" }), "pushState");
  assert.equal(how({ event: "e" }), "pushState");
  assert.equal(how({ event: null, row: "r" }), "pushState");
  assert.equal(how({ snapshots: ["1/a", "1/b"] }), "pushState");
  assert.equal(how({ rank: 1 }), "replaceState");
  assert.equal(how({ smooth: 0.5 }), "replaceState");
  assert.equal(how({ run: "r" }, false), "replaceState"); // the page chose it by itself
  ns.change({ run: "r" });
  assert.equal(visited.length, 7); // nothing has changed: nothing is written
});

test("an address that changes at every frame is written ten times a second, and whole in the end", () => {
  const { ns, visited, pass } = at("/");
  for (let frame = 1; frame <= 50; frame++) {
    ns.zoom(frame, frame + 10);
    pass(10);
  }
  pass(200);
  assert.ok(visited.length > 2 && visited.length <= 7, String(visited.length));
  assert.match(visited.at(-1)[1], /steps=50-61$/);
  ns.change({ smooth: 0.5 });
  ns.change({ smooth: 0.6 });
  assert.match(ns.address(), /smooth=0.6/); // who asks gets the newest
});

test("a move that ends where the newest step is followed is in the address at once", () => {
  const { ns, visited } = at("/?run=a");
  for (const first of [10, 11, 12]) ns.zoom(first, first + 10);
  ns.change({ window: 10, paused: false, first: null, end: null });
  assert.equal(visited.at(-1)[1], "/?run=a&newest=10");
});

test("what is chosen or typed is in the address at once, for a reload that follows", () => {
  const { ns, window } = at("/");
  const query = () => new URLSearchParams(window.location.href.split("?")[1]);
  for (const filter of ["b", "bl", "blo"]) ns.change({ filter });
  assert.equal(query().get("filter"), "blo");
  ns.change({ log: true });
  ns.change({ clip: true, folded: ["blocks"] });
  same([query().get("log"), query().get("clip"), query().getAll("fold")], ["1", "1", ["blocks"]]);
});

test("a zoom holds the whole steps between its ends, at least two", () => {
  const { ns } = at("/");
  ns.zoom(2.3, 7.9);
  same([ns.view.first, ns.view.end, ns.view.paused, ns.range], [3, 8, true, [3, 8]]);
  ns.zoom(-4, 0.2);
  same([ns.view.first, ns.view.end], [0, 2]);
  ns.reset();
  same([ns.view.first, ns.view.end, ns.view.paused], [null, null, false]);
});

test("another run has no row over the page that is not there", () => {
  const { ns, visited } = at("/?run=a&row=w&wide=1");
  ns.chooseRun("b", true);
  same([ns.view.row, ns.view.wide], [null, false]);
  same(at(visited.at(-1)[1]).ns.view, ns.view);
});

test("another run begins anew but keeps how it is looked at", () => {
  const { ns } = at("/?run=a&rank=2&event=e&steps=3-9&smooth=0.9&tab=layers");
  ns.chooseRun("b", true);
  same(ns.view, { ...DEFAULTS, run: "b", isOwnChoice: true, smooth: 0.9, tab: "layers" });
  assert.equal(ns.range, null);
});

test("snapshots are of one process: another rank or run has none of them", () => {
  for (const change of [(ns) => ns.change({ rank: 1 }), (ns) => ns.chooseRun("b", true)]) {
    const { ns, visited } = at("/?run=a&snapshot=1%2Fx&snapshot=1%2Fy");
    change(ns);
    same(ns.view.snapshots, []);
    assert.doesNotMatch(ns.address() + visited.at(-1)[1], /snapshot/);
    ns.change({ rank: 2, snapshots: ["2/z"] });
    same(ns.view.snapshots, ["2/z"]);
  }
});

test("a range is told of once, and nothing of one without ends", () => {
  const { ns } = at("/"), heard = [];
  ns.on("range", (range) => heard.push(range));
  for (const range of [[1, 5], [1, 5], null, [null, null], [1, 6]]) ns.setRange(range);
  same(heard, [[1, 5], [1, 6]]);
});
