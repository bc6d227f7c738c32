// The panel of one tensor (ns_72): what it shows belongs to the run and the rank that are shown.
import assert from "node:assert/strict";
import { test } from "node:test";
import { open, same } from "./page.mjs";

// A page with an open row, whose pictures are kept as names.
function panel() {
  const page = open(["00", "20"]);
  const drawn = [], tracks = [];
  Object.assign(page.ns, {
    heatmap: { rows: ["w"], shown: [0] },
    showHistograms: (kinds) => drawn.push(kinds),
    showTensorTracks: (shown) => tracks.push(shown.of ?? null),
  });
  page.load("72");
  page.ns.view.run = "a";
  page.ns.startRows();
  page.ns.emit("message", { run: "a", newestStep: 9, histograms: 3 });
  page.ns.openRow("w");
  const asked = page.props.findLast(([id]) => id === "row-scope")[1].data;
  page.ns.takeRow({ row: "w", watch: "", kinds: ["of a"], run: asked.run, rank: asked.rank });
  page.ns.takeRowTracks({ row: "w", of: "a", run: asked.run, rank: asked.rank });
  return { ...page, drawn, tracks };
}

test("an open row shows what was answered for it", () => {
  const { drawn, tracks } = panel();
  same(drawn.at(-1), ["of a"]);
  same(tracks.at(-1), "a");
});

for (const [what, changes] of [["run", { run: "b" }], ["rank", { rank: 1 }]]) {
  test(`the same row of another ${what} shows nothing of the one before`, () => {
    const { ns, drawn, tracks, props } = panel();
    ns.change(changes);
    same(drawn.at(-1), []);
    same(tracks.at(-1), null);
    const { run, rank } = props.findLast(([id]) => id === "row-scope")[1].data;
    same([run, rank], [changes.run ?? "a", changes.rank ?? 0]);
    // What was asked for before and comes now is not of this one.
    ns.takeRow({ row: "w", watch: "", kinds: ["of a"], run: "a", rank: 0 });
    ns.takeRowTracks({ row: "w", of: "a", run: "a", rank: 0 });
    same(drawn.at(-1), []);
    same(tracks.at(-1), null);
    ns.takeRow({ row: "w", watch: "", kinds: ["new"], run, rank });
    same(drawn.at(-1), ["new"]);
  });
}

test("a row that stays open keeps its pictures while steps arrive", () => {
  const { ns, drawn } = panel();
  const before = drawn.length;
  ns.emit("message", { run: "a", newestStep: 10, histograms: 4 });
  assert.equal(drawn.length, before);
});

test("a row that is opened again asks again: closing it has put its pictures away", () => {
  const { ns, props } = panel();
  const asked = () => ["row-scope", "row-tracks-scope"].map((id) => props.filter(([each]) => each === id).length);
  const before = asked();
  ns.closeRow();
  ns.openRow("w");
  same(asked(), before.map((count) => count + 1));
});
