// What the view Memory asks the server for: the two snapshots that are compared are those of the address (ns_75).
import assert from "node:assert/strict";
import { test } from "node:test";
import { open, same } from "./page.mjs";

// A page at an address, with a message about its run; its two selects have these values.
function at(address) {
  const page = open(["00", "20", "75"], { address });
  const selects = [{ value: "1/a", dataset: { picked: "1/a" } }, { value: "1/c", dataset: { picked: "1/c" } }];
  page.byId("memory-details").querySelectorAll = () => selects;
  page.window.MutationObserver = class { observe() {} };
  page.ns.startView();
  page.ns.startMemory();
  page.ns.emit("message", { run: page.ns.view.run, documents: 1, events: 1, newestStep: 9 });
  const asked = () => page.props.filter(([id]) => id === "memory-scope").at(-1)[1].data.picked;
  const pick = (number, value) => {
    selects[number].value = value;
    page.byId("memory-details").dispatch("change", { target: { matches: () => true } });
  };
  return { ...page, asked, pick };
}

test("the snapshots of the address are asked for", () => {
  same(at("/?run=r&tab=memory&snapshot=1%2Fa&snapshot=1%2Fb").asked(), ["1/a", "1/b"]);
  same(at("/?run=r&tab=memory").asked(), []);
});

test("snapshots that are picked are asked for and stand in the address", () => {
  const page = at("/?run=r&tab=memory");
  page.pick(1, "1/b");
  same(page.asked(), ["1/a", "1/b"]);
  same(page.visited.at(-1), ["pushState", "/?run=r&tab=memory&snapshot=1%2Fa&snapshot=1%2Fb"]);
});

test("an address with other snapshots, as Back comes to one, asks for them at once", () => {
  const page = at("/?run=r&tab=memory");
  page.pick(1, "1/b");
  page.ns.visit("run=r&tab=memory&snapshot=1%2Fx&snapshot=1%2Fy", true);
  same(page.asked(), ["1/x", "1/y"]);
  page.ns.visit("run=r&tab=memory", true);
  same(page.asked(), []);
});
