// Values beside a track: the large one and those of its lines are of one moment (ns_42).
import assert from "node:assert/strict";
import { test } from "node:test";
import { open, same } from "./page.mjs";

const CHART = {
  id: "grad_norm", names: ["grad_norm", "grad_norm_clipped"], labels: { grad_norm: "gradient norm" }, prefix: "", marks: {},
};

// A page whose picture has these lines, at steps 0, 1, ...; the crosshair is where a test puts it.
function gutter(lines, chart = CHART) {
  const page = open(["00", "10", "20", "41", "42"]);
  const { ns } = page;
  const values = new Map(); // series -> its element in the legend
  const large = { textContent: "" }, detail = { textContent: "" };
  const parts = { ".ns-tile-value": large, ".ns-tile-detail": detail };
  page.byId("gutter-grad_norm").querySelector = (selector) => parts[selector];
  page.byId("legend-grad_norm").querySelectorAll = () => {
    const found = page.byId("legend-grad_norm").children.map((line) => line.children.at(-1)).filter((each) => each.dataset.series);
    for (const each of found) values.set(each.dataset.series, each);
    return found;
  };
  Object.assign(ns, {
    at: null, crosshair: () => ns.at, theme: () => ({ colours: { series: ["#000", "#111"], kinds: ["#000", "#111"] } }), templates: { charts: [chart] },
    chartFields: () => ({ series: Object.keys(lines) }),
  });
  for (const [name, y] of Object.entries(lines)) {
    ns.arrays.set(`grad_norm/${name}/line/x`, Float64Array.from(y, (_, step) => step));
    ns.arrays.set(`grad_norm/${name}/line/y`, Float64Array.from(y));
  }
  ns.showArrays();
  ns.drawGutter(chart, ns.chartFields());
  const shown = () => [large.textContent, ...[...values.values()].map((each) => each.textContent)];
  return { ...page, shown, detail };
}
const tile = (value, lines) => ({ id: "grad_norm", value, detail: "", lines });

test("values of the lines are as new as the large one, five times a second", () => {
  const { ns, shown } = gutter({ grad_norm: [1, 2], grad_norm_clipped: [1, 1] });
  same(shown(), ["2", "2", "1"]);
  ns.giveNewest("grad_norm", tile("3.125", { grad_norm: "3.125", grad_norm_clipped: "0.5" }));
  same(shown(), ["3.125", "3.125", "0.5"]);
  ns.giveNewest("grad_norm", tile("NaN", { grad_norm: "NaN" })); // a line that the status has not is that of the picture
  same(shown(), ["NaN", "NaN", "1"]);
});

test("under the crosshair all values are those of its step", () => {
  const { ns, shown, detail } = gutter({ grad_norm: [1, 2], grad_norm_clipped: [1, 0.5] });
  ns.giveNewest("grad_norm", tile("9", { grad_norm: "9", grad_norm_clipped: "8" }));
  ns.at = 0;
  ns.drawGutter(CHART, ns.chartFields());
  same(shown(), ["1", "1", "1"]);
  ns.giveNewest("grad_norm", tile("10", { grad_norm: "10", grad_norm_clipped: "8" }));
  same(shown(), ["1", "1", "1"]);
  assert.equal(detail.textContent, "now 10");
});

test("areas on each other have their sum as the large value", () => {
  const stacked = { ...CHART, names: ["grad_norm", "other"], stacked: true };
  const { ns, shown } = gutter({ grad_norm: [1, 2, 3], other: [0.5, 0.25, NaN] }, stacked);
  same(shown().slice(0, 2), ["3", "3"]); // of the newest: what is not there adds nothing
  ns.at = 1;
  ns.drawGutter(stacked, ns.chartFields());
  same(shown(), ["2.25", "2", "0.25"]);
});
