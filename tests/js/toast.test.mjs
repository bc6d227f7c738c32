// The toast that tells of a new critical event (ns_84).
import assert from "node:assert/strict";
import { test } from "node:test";
import { open } from "./page.mjs";

const critical = (id) => ({ id, step: 1, severity_order: 0, message: `NaN ${id}` });

// A page that knows of no event yet; `come` has these events on it, and lets the toast's time pass.
function toast() {
  const page = open(["00", "20", "84"]);
  let rows = [];
  Object.assign(page.ns, { rowsInOrder: () => rows, notify() {}, openEvent: (event) => page.ns.change({ event }) });
  page.byId("toast").matches = () => false;
  page.byId("toast").hidden = true;
  page.ns.startToast();
  page.ns.emit("rows", null);
  const come = (...ids) => {
    rows = [...rows, ...ids.map(critical)];
    page.ns.emit("rows", null);
    page.pass(5001);
  };
  return { ...page, come, isShown: () => !page.byId("toast").hidden };
}

test("a toast goes when its event is opened, by whatever way", () => {
  const { ns, come, isShown, byId } = toast();
  come("a");
  assert.equal(isShown(), true);
  ns.change({ event: "other" });
  assert.equal(isShown(), true);
  ns.change({ event: "a" });
  assert.equal(isShown(), false);
  come("b");
  byId("toast-open").dispatch("click");
  assert.equal(ns.view.event, "b");
  assert.equal(isShown(), false);
});

test("one that tells of several stays when the first of them is opened", () => {
  const { ns, come, isShown, byId } = toast();
  come("a", "b");
  assert.match(byId("toast-more").textContent, /1 more/);
  ns.change({ event: "a" });
  assert.equal(isShown(), true);
});

test("an event that is open already needs none", () => {
  const { ns, come, isShown } = toast();
  ns.change({ event: "a" });
  come("a");
  assert.equal(isShown(), false);
});
