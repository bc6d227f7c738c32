// Which run the page shows, and what it says of an address that names what is not there (ns_60).
import assert from "node:assert/strict";
import { test } from "node:test";
import { open } from "./page.mjs";

const RUNS = ["new", "old"].map((run) => ({ run, name: run, ranks: [{ rank: 0, state: "finished" }] }));
const STATUS = { now: 0, notices: [], tiles: [], state: "finished", newestStep: 9, newestTime: 0, level: {} };

// A page at an address, whose server has those runs.
function at(address) {
  const page = open(["00", "20", "60"], { address });
  const { ns, window } = page;
  window.setInterval = () => 0;
  Object.assign(ns, { link: { isOpen: true, heardAt: 0 }, drawRunButton() {} });
  ns.startView();
  ns.startStatus();
  return page;
}
const says = (page) => page.byId("notice").textContent;
const query = (page) => new URL(page.visited.at(-1)?.[1] ?? "/", "http://127.0.0.1").searchParams;

test("an event without its run brings its run: both are in the address, and nothing else of it is lost", () => {
  const page = at("/?event=e&steps=3-9");
  page.ns.emit("runs", RUNS); // the answer to an older wish says nothing of the event
  assert.equal(page.ns.view.run, null);
  page.ns.emit("message", { ...STATUS, run: "old", eventRun: "old", runs: RUNS });
  assert.equal(String(query(page)), "run=old&event=e&steps=3-9");
  assert.deepEqual(page.visited.map(([how]) => how), ["replaceState"]); // Back leaves the page, as it should
  assert.equal(says(page), "");
  page.ns.change({ event: null });
  const newer = { ...RUNS[0], run: "newer", ranks: [{ rank: 0, state: "running" }] };
  page.ns.emit("message", { ...STATUS, run: "old", runs: [newer, ...RUNS] });
  assert.equal(page.ns.view.run, "old"); // it was named, so a newer one does not replace it
});

test("an event that no run has is said to be missing, above the newest run", () => {
  const page = at("/?event=" + "x".repeat(300));
  page.ns.emit("message", { ...STATUS, run: "new", eventRun: null, runs: RUNS });
  assert.equal(String(query(page)), "run=new");
  page.ns.emit("message", { ...STATUS, run: "new" });
  assert.equal(says(page), `No run here has the event ${"x".repeat(64)}; this is the newest run.`);
});

test("an event without its run waits for the first run", () => {
  const page = at("/?event=e");
  page.ns.emit("message", { ...STATUS, run: null, eventRun: null, runs: [] });
  assert.equal(page.ns.view.event, "e");
  page.ns.emit("message", { ...STATUS, run: "old", eventRun: "old", runs: RUNS });
  assert.equal(String(query(page)), "run=old&event=e");
});

test("an address without run and event moves to a run that goes on, else to the newest", () => {
  const page = at("/");
  page.ns.emit("message", { ...STATUS, run: "new", runs: RUNS });
  assert.equal(page.ns.view.run, "new");
  const running = { ...RUNS[1], run: "on", ranks: [{ rank: 0, state: "running" }] };
  page.ns.emit("message", { ...STATUS, run: "new", runs: [...RUNS, running] });
  assert.equal(page.ns.view.run, "on");
});

test("records that could not be written are counted beside the state, and a run without a loss says nothing", () => {
  const page = at("/?run=old");
  page.ns.emit("message", { ...STATUS, run: "old", runs: RUNS, lost: 0 });
  assert.doesNotMatch(page.byId("live-text").textContent, /lost/);
  page.ns.emit("message", { ...STATUS, run: "old", runs: RUNS, lost: 8096 });
  assert.match(page.byId("live-text").textContent, / \u00b7 8.096 lost$/);
  assert.match(page.byId("live-button").title, /8.096 records could not be written and are lost/);
});
