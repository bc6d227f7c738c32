// Views that somebody has named (ns_85_saved_views): kept in the browser, opened on this run or another.
import assert from "node:assert/strict";
import { test } from "node:test";
import { open, same } from "./page.mjs";

// A page at this address, with what the browser has stored.
function saved(stored, { address = "/?run=a&tab=layers", refuses = false } = {}) {
  const page = open(["00", "20", "85"], { address });
  const store = new Map(stored === undefined ? [] : [["nanscope-views", stored]]);
  const listeners = {};
  page.window.addEventListener = (kind, listener) => { listeners[kind] = listener; };
  page.window.localStorage = {
    getItem: (key) => store.get(key) ?? null,
    setItem: (key, value) => { if (refuses) throw new Error("full"); store.set(key, value); },
  };
  for (const id of ["menu-views", "views-list"]) page.byId("menu").append(page.byId(id));
  Object.assign(page.byId("views-dialog"), { showModal() {}, close() {} });
  page.ns.make = ((make) => (...args) => Object.assign(make(...args), { focus() {}, select() {} }))(page.ns.make);
  page.ns.startView();
  page.ns.startSavedViews();
  const [name, label] = page.byId("views-place").children, [isOfRun] = label.children;
  const save = (text, withRun = true) => {
    name.value = text;
    isOfRun.checked = withRun;
    page.byId("views-save").dispatch("click");
    return page.byId("views-said").textContent;
  };
  const line = (at) => page.byId("views-list").children[at];
  const press = (at, text) => line(at).children.find((each) => each.textContent === text).dispatch("click");
  return { ...page, save, line, press, store, name, listeners, kept: () => JSON.parse(store.get("nanscope-views") ?? "null") };
}

test("a view is the address under a name, the newest first", () => {
  const { ns, save, kept, name, byId } = saved();
  assert.equal(save("  first "), "Saved.");
  save("second");
  same(ns.savedViews(), [{ name: "second", query: "run=a&tab=layers" }, { name: "first", query: "run=a&tab=layers" }]);
  same(kept(), ns.savedViews());
  assert.equal(name.value, "");
  same(byId("menu-views").children.map((item) => item.textContent), ["second", "first"]);
});

test("without its run a view has nothing that means nothing on another one", () => {
  const { ns, save } = saved(undefined, { address: "/?run=a&rank=3&event=e&snapshot=x&snapshot=y&tab=memory&log=1" });
  save("any", false);
  assert.equal(ns.savedViews()[0].query, "tab=memory&log=1");
});

test("the same name takes the place of the old one", () => {
  const { ns, save, window } = saved();
  save("one");
  window.location.href = "http://127.0.0.1:8050/?tab=runs";
  assert.match(save("one"), /Replaced/);
  same(ns.savedViews(), [{ name: "one", query: "tab=runs" }]);
});

test("no name, too long an address and too many views are said and not kept", () => {
  const many = JSON.stringify(Array.from({ length: 50 }, (_, at) => ({ name: `v${at}`, query: "" })));
  const { ns, save, window } = saved(many);
  assert.equal(save("   "), "Give it a name.");
  assert.match(save("one more"), /^At most 50 views/);
  assert.match(save("v7"), /Replaced/);
  window.location.href = "http://127.0.0.1:8050/?find=" + "x".repeat(8000);
  assert.match(save("long"), /too long/);
  assert.equal(ns.savedViews().length, 50);
});

test("what is stored may be anything", () => {
  for (const stored of ["", "no json", "3", "{}", "null", '[{"name": 3, "query": ""}, {"name": "", "query": ""}, {"name": "a"}, 7, null]']) {
    same(saved(stored).ns.savedViews(), [], stored);
  }
  const long = JSON.stringify([{ name: "n".repeat(81), query: "" }, { name: "q", query: "q".repeat(8001) }, { name: "ok", query: "tab=runs", more: 1 }]);
  same(saved(long).ns.savedViews().map((view) => view.name), ["ok"]);
  same(saved(JSON.stringify(Array.from({ length: 60 }, (_, at) => ({ name: `${at}`, query: "" })))).ns.savedViews().length, 50);
});

test("a browser that keeps nothing says so, and the view holds until the page is closed", () => {
  const { ns, save } = saved(undefined, { refuses: true });
  assert.match(save("one"), /^This browser cannot store it/);
  assert.equal(ns.savedViews().length, 1);
});

test("a view of a run that is there opens that run", () => {
  const { ns } = saved();
  ns.runs = [{ run: "a" }, { run: "b" }];
  ns.openSaved({ query: "run=b&rank=2&tab=memory&steps=5-9" });
  same([ns.view.run, ns.view.rank, ns.view.tab, ns.view.first, ns.view.isOwnChoice], ["b", 2, "memory", 5, true]);
});

test("one of a run that is gone applies to the run that is shown, without what it has not", () => {
  const { ns, window } = saved(undefined, { address: "/?run=a&rank=1" });
  ns.runs = [{ run: "a" }];
  ns.newestStep = 100;
  ns.openSaved({ query: "run=gone&rank=7&event=e&snapshot=s&tab=layers&steps=101-200" });
  same([ns.view.run, ns.view.rank, ns.view.event, ns.view.tab, ns.view.first], ["a", 1, null, "layers", null]);
  same(ns.view.snapshots, []);
  ns.openSaved({ query: "run=gone&steps=50-200" });
  same([ns.view.first, ns.view.end], [50, 200]);
  assert.match(window.location.href, /run=a/);
});

test("opening a view is a step that Back takes back", () => {
  const { ns, visited } = saved();
  ns.runs = [{ run: "a" }];
  ns.openSaved({ query: "run=a&tab=runs" });
  same(visited.at(-1), ["pushState", "/?run=a&tab=runs"]);
});

test("deleted views can be put back while the dialog is open", () => {
  const { ns, save, press, line, kept } = saved();
  save("one");
  save("two");
  press(0, "Delete");
  same(kept().map((view) => view.name), ["one"]);
  assert.match(line(1).textContent, /^Deleted two/);
  press(1, "Undo");
  same(ns.savedViews().map((view) => view.name), ["two", "one"]);
  save("three");
  press(0, "Delete");
  save("three"); // its name is taken again
  press(3, "Undo");
  same(ns.savedViews().map((view) => view.name), ["three", "two", "one"]);
});

test("a new name is taken with Enter, not with Escape, and not where another view has it", () => {
  const { ns, save, press, line, byId } = saved();
  save("one");
  save("two");
  byId("views-list").querySelector = () => line(0).children[0];
  const rename = (text, key) => {
    press(0, "Rename");
    const [field] = line(0).children;
    field.value = text;
    field.dispatch("keydown", { key, preventDefault() {}, stopPropagation() {} });
    return ns.savedViews().map((view) => view.name);
  };
  same(rename("other", "Escape"), ["two", "one"]);
  same(rename("one", "Enter"), ["two", "one"]);
  assert.equal(byId("views-said").textContent, "Another view already has that name.");
  same(rename(" third ", "Enter"), ["third", "one"]);
  same(rename("", "Enter"), ["third", "one"]);
});

test("what another tab has saved is there", () => {
  const { ns, store, listeners } = saved();
  store.set("nanscope-views", JSON.stringify([{ name: "theirs", query: "tab=runs" }]));
  listeners.storage({ key: "other" });
  same(ns.savedViews(), []);
  listeners.storage({ key: "nanscope-views" });
  same(ns.savedViews().map((view) => view.name), ["theirs"]);
});
