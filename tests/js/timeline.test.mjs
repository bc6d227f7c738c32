// The events below the tracks (ns_47): which share a marker, what it says, and which buttons stay.
import assert from "node:assert/strict";
import { test } from "node:test";
import { open, same } from "./page.mjs";

// An axis of 1,000 pixels at 180, one for each step.
function timeline(rows) {
  const page = open(["00", "20", "37", "38", "39", "47"]), { ns } = page;
  const context = { measureText: () => ({ width: 0 }), fillText() {}, beginPath() {}, moveTo() {}, lineTo() {}, stroke() {} };
  Object.assign(ns, {
    array: () => new Float64Array(0), theme: () => ({ colours: { grid: "", muted: "" } }), canvasOf: () => context,
    boxOf: () => ({ l: 180, t: 0, w: 1000, h: 60 }), eventRows: () => rows, openEvent: (id) => { page.opened = id; },
  });
  ns.range = [0, 1000];
  ns.view.paused = true;
  for (let lane = 0; lane < 3; lane++) {
    const name = ns.make("span");
    name.append(ns.make("b"), ns.make("small"));
    page.byId("timeline-names").append(name);
  }
  page.draw = (next = rows) => { ns.eventRows = () => next; ns.drawTimeline(); };
  page.buttons = () => page.byId("timeline-markers").children;
  // [place in pixels, severity, sign, number]
  page.markers = () => page.buttons().map((button) => [
    parseFloat(button.style.left), button.dataset.severity, button.firstChild.textContent, button.lastChild.textContent,
  ]);
  page.names = () => page.byId("timeline-names").children.map((name) => name.lastChild.textContent);
  page.draw();
  return page;
}
const event = (step, order = 0, more = {}) => ({ id: `e${order}-${step}`, step, severity_order: order, message: `at ${step}`, ...more });

test("each severity has its lane and its sign, and its number beside its name", () => {
  const page = timeline([event(99, 0), event(299, 1), event(300, 1), event(500, 2)]);
  same(page.markers(), [
    [279.5, "critical", "\u25c6", ""], [479.5, "warning", "\u25b2", "2"], [680.5, "info", "\u25cf", ""],
  ]);
  same(page.buttons().map((button) => button.style.top), ["10px", "30px", "50px"]);
  same(page.names(), ["1", "2", "1"]);
});

test("events of a lane within 28 pixels of a marker's first share it, others begin the next", () => {
  const page = timeline([128, 100, 129, 157, 158].map((step) => event(step)));
  same(page.markers().map(([left, , , count]) => [left, count]), [[280.5, "2"], [309.5, "2"], [338.5, ""]]);
});

test("a lane with more digits has its markers farther apart", () => {
  const rows = Array.from({ length: 1000 }, (_, step) => event(step)); // four digits: 28 + 2 * 7 pixels
  const page = timeline(rows);
  const counts = page.markers().map(([, , , count]) => Number(count));
  same(counts.slice(0, 2), [43, 43]);
  assert.equal(counts.reduce((a, b) => a + b), 1000);
  same(page.names(), ["1,000", "", ""]);
});

test("a marker names its first five events, and opens the first", () => {
  const page = timeline([1, 2, 3, 4, 5, 6, 7].map((step) => event(step, 1)));
  const [button] = page.buttons();
  assert.equal(button.title, "at 1\nat 2\nat 3\nat 4\nat 5\nand 2 more");
  assert.equal(button.getAttribute("aria-label"), "warning, step 1: at 1, and 6 more");
  button.dispatch("click");
  assert.equal(page.opened, "e1-1");
});

test("the marker with the event that is open says so, whichever of its events that is", () => {
  const page = timeline([event(10), event(20), event(500)]);
  page.ns.view.event = "e0-20";
  page.draw();
  same(page.buttons().map((button) => button.classList.contains("ns-marker-open")), [true, false]);
});

test("what is out of the steps on screen has no marker", () => {
  const page = timeline([event(5), event(150), event(999)]);
  page.ns.range = [100, 200];
  page.draw();
  same(page.markers().map(([left]) => left), [180 + 505]);
  same(page.names(), ["1", "", ""]);
});

test("a marker keeps its button, and the focus on it, when others come and go", () => {
  const page = timeline([event(100), event(500)]);
  const [first, second] = page.buttons();
  page.draw([event(100), event(110), event(300)]);
  assert.equal(page.buttons()[0], first);
  assert.ok(!page.buttons().includes(second));
  same(page.markers().map(([left, , , count]) => [left, count]), [[280.5, "2"], [480.5, ""]]);
});
