// Zoom and pan (ns_21), and the heatmap that is stretched meanwhile (ns_49): what each frame tells, and what only the rest.
import assert from "node:assert/strict";
import { test } from "node:test";
import { open, same } from "./page.mjs";

function moving() {
  const page = open(["00", "20", "21"], { address: "/?run=a" });
  const heard = { view: [], range: [], rest: 0 };
  page.ns.startView();
  page.ns.on("view", ({ first, end }) => heard.view.push([first, end]));
  page.ns.on("range", ([first, end]) => heard.range.push([first, end]));
  page.ns.on("rest", () => { heard.rest += 1; });
  const frames = (count, from = 0) => {
    for (let at = from; at < from + count; at++) { page.ns.zoom(100 + at, 199 + at); page.pass(16); }
  };
  page.pass(1000);
  return { ...page, heard, frames };
}

test("a move alone is told at once, and is none that goes on", () => {
  const { ns, heard, visited } = moving();
  ns.zoom(100, 199);
  same(heard, { view: [[100, 200]], range: [[100, 200]], rest: 0 });
  assert.ok(!ns.isMoving() && ns.view.paused);
  same(visited.at(-1), ["replaceState", "/?run=a&steps=100-200"]);
});

test("a series tells of its range at every frame, of the view at first and now and then", () => {
  const { ns, heard, frames } = moving();
  frames(60);
  assert.equal(heard.range.length, 60);
  same(heard.view.map(([first]) => first), [100, 126, 152]);
  assert.ok(ns.isMoving());
  same([ns.view.first, ns.view.end], [159, 259]);
});

test("at rest a series tells of the view that it ended with, once, and writes it", () => {
  const { ns, heard, frames, pass, visited } = moving();
  frames(10);
  pass(200);
  pass(1000);
  same(heard.view, [[100, 200], [109, 209]]);
  assert.equal(heard.rest, 1);
  assert.ok(!ns.isMoving());
  same(visited.at(-1), ["replaceState", "/?run=a&steps=109-209"]);
});

test("another change of the view ends a series, whose rest tells nothing more", () => {
  const { ns, heard, frames, pass } = moving();
  frames(10);
  ns.resume();
  assert.ok(!ns.isMoving());
  pass(1000);
  same(heard, { ...heard, view: [[100, 200], [null, null]], rest: 1 });
});

test("a picture is stretched to where its steps lie on the new axis", () => {
  const { ns } = open(["00", "49"]);
  const of = ({ first, last }, step) => (step - first) / (last - first);
  for (const [from, to] of [[[0, 100], [10, 110]], [[-0.5, 99.5], [40, 60]], [[3, 9], [0, 640]]]) {
    const [old, axis] = [from, to].map(([first, last]) => ({ first, last }));
    const { scale, by } = ns.stretchOf(old, axis);
    for (const step of [0, 5, 50]) assert.ok(Math.abs(by + scale * of(old, step) - of(axis, step)) < 1e-12);
  }
});
