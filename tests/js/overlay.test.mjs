// Ticked runs over the open one (ns_67_overlay): what is asked for, when again, and the lines that come of it.
import assert from "node:assert/strict";
import { test } from "node:test";
import { open, same } from "./page.mjs";

const column = (step, mean, pooled = step.map(() => 1)) => ({ step, mean, pooled });

// A page whose server has these series of each run; `asked` are the addresses, `settle` lets the answers come.
function overlay(series = {}, view = {}) {
  const page = open(["00", "10", "20", "67"]);
  const { ns, window, body } = page;
  const asked = [];
  const state = { ok: true, fails: false };
  window.document.hidden = false;
  body.dataset.tab = "overview";
  window.fetch = async (address) => {
    asked.push(address);
    if (state.fails) throw new TypeError("no connection");
    const run = decodeURIComponent(address.split("/")[4]);
    return { ok: state.ok, json: async () => ({ series: series[run] ?? {} }) };
  };
  let draws = 0;
  Object.assign(ns, { drawLines: () => { draws += 1; }, theme: () => ({ colours: { series: ["c0", "c1", "c2"] } }) });
  ns.runs = [{ run: "b", name: "second" }];
  Object.assign(ns.view, { run: "a", tab: "overview", compared: ["a", "b"], ...view });
  ns.startOverlay();
  const settle = async () => { page.pass(250); for (let turn = 0; turn < 10; turn++) await Promise.resolve(); page.frame(); };
  return { ...page, asked, settle, state, drawn: () => draws };
}
const LOSS = { loss: column([0, 1, 2], [3, 2, 1]) };

test("the series of every ticked run but the open one are asked for, at most 600 points", async () => {
  const { asked, settle } = overlay({ b: LOSS, "c/d": LOSS }, { compared: ["b", "a", "c/d"] });
  assert.equal(asked.length, 0);
  await settle();
  same(asked, ["b", "c%2Fd"].map((run) => `/api/v1/runs/${run}/series/values?points=600&name=loss&name=grad_norm`));
});

test("held, only the steps on screen are asked for", async () => {
  const { ns, asked, settle } = overlay({ b: LOSS }, { paused: true });
  ns.range = [40, 90];
  await settle();
  assert.match(asked[0], /&first=40&end=90$/);
});

test("lines are those of the other runs, by name, in the next colours, at the middle of pooled steps", async () => {
  const series = { loss: column([0, 4], [3, 2], [4, 4]) };
  const { ns, settle } = overlay({ b: series, c: LOSS }, { compared: ["b", "c"] });
  same(ns.overlayLines("loss"), []);
  await settle();
  const lines = ns.overlayLines("loss");
  same(lines.map(({ name, label, colour }) => [name, label, colour]), [["b", "second", "c1"], ["c", "c", "c2"]]);
  same([lines[0].x, lines[0].y], [[1.5, 5.5], [3, 2]]);
  same(lines.map(({ hasDots }) => hasDots), [true, true]);
  same(ns.overlayLines("grad_norm"), []); // nobody has it
  same(ns.overlayLines("lr"), []); // no track that is compared
});

test("what is no number breaks a line", async () => {
  const { ns, settle } = overlay({ b: { loss: column([0, 1, 2, 3], [1, "NaN", null, "Infinity"]) } });
  await settle();
  same(ns.overlayLines("loss")[0].y, [1, NaN, NaN, NaN]);
});

test("what is known is asked for again after three seconds, or at once for other steps", async () => {
  const { ns, asked, settle, pass } = overlay({ b: LOSS });
  await settle();
  ns.emit("message", { charts: {} });
  await settle();
  assert.equal(asked.length, 1);
  pass(3000);
  ns.emit("message", { charts: {} });
  await settle();
  assert.equal(asked.length, 2);
  Object.assign(ns.view, { paused: true });
  ns.range = [0, 2];
  ns.emit("range", ns.range);
  await settle();
  assert.equal(asked.length, 3);
  ns.emit("message", {}); // without lines
  pass(9000);
  await settle();
  assert.equal(asked.length, 3);
});

test("a zoom that goes on asks four times a second, and for what it ends at", async () => {
  const { ns, asked, settle, pass } = overlay({ b: LOSS }, { paused: true });
  for (let step = 1; step <= 20; step++) {
    ns.range = [step, 100];
    ns.emit("range", ns.range);
    pass(20);
  }
  await settle();
  same(asked.map((address) => /first=(\d+)/.exec(address)[1]), ["13", "20"]); // after 250 ms, and 250 ms after the next
});

test("an answer that fails leaves the lines that are there", async () => {
  const { ns, settle, pass, state } = overlay({ b: LOSS });
  await settle();
  state.fails = true;
  pass(3000);
  ns.emit("message", { charts: {} });
  await settle();
  assert.equal(ns.overlayLines("loss").length, 1);
  Object.assign(state, { fails: false, ok: false }); // a run that is gone
  pass(3000);
  ns.emit("message", { charts: {} });
  await settle();
  same(ns.overlayLines("loss"), []);
});

test("a run that is ticked off is forgotten, and drawn no more", async () => {
  const { ns, settle, frame, drawn } = overlay({ b: LOSS });
  await settle();
  const before = drawn();
  ns.change({ compared: ["a"] });
  frame();
  same(ns.overlayLines("loss"), []);
  assert.equal(drawn(), before + 1);
});

test("nothing is asked while the overview is not seen", async () => {
  const { window, ns, asked, settle } = overlay({ b: LOSS }, { tab: "layers" });
  await settle();
  ns.view.tab = "overview";
  window.document.hidden = true;
  ns.emit("tab", "overview");
  await settle();
  assert.equal(asked.length, 0);
  window.document.hidden = false;
  ns.emit("tab", "overview");
  await settle();
  assert.equal(asked.length, 1);
});
