// Exports (ns_85_export): what a file covers, which address makes it, and the list of tracks.
import assert from "node:assert/strict";
import { test } from "node:test";
import { fillHeatmap, open, same } from "./page.mjs";

function page(view = {}) {
  const made = open(["00", "10", "20", "50", "85"]);
  const { ns, window, byId } = made;
  const wanted = [], answers = [];
  window.location.assign = (address) => wanted.push(address);
  window.fetch = (address) => new Promise((resolve, reject) => answers.push({ address, resolve, reject }));
  window.document.querySelector = () => (byId("export-dialog").open ? byId("export-dialog") : null);
  Object.assign(byId("export-dialog"), { showModal() { this.open = true; }, close() { this.open = false; } });
  const forms = ["html", "csv"].map((form) => Object.assign(ns.make("button"), { dataset: { form } }));
  byId("export-forms").querySelectorAll = () => forms;
  ns.templates = { statistics: [{ id: "grad_norm", of: "layer" }, { id: "rms", of: "module" }] };
  ns.themeName = "dark";
  fillHeatmap(ns, ["a", "a.weight", "b"], { kinds: ["layer", "parameter", "layer"] });
  Object.assign(ns.view, { run: "a/b", heatmap: "grad_norm", ...view });
  ns.range = [0, 600];
  ns.newestStep = 599;
  ns.startExport();
  const answer = async (body, ok = true, at = answers.length - 1) => {
    answers[at].resolve({ ok, json: async () => body });
    for (let turn = 0; turn < 6; turn++) await Promise.resolve();
  };
  return { ...made, wanted, answers, answer, forms };
}

test("it covers the steps on screen up to the newest one, and the layers, not their parameters", () => {
  const { ns } = page();
  assert.equal(ns.exportCovers(), "steps 0\u2013599, 2 layers");
  ns.range = [100, 1024]; // the axis of a live run goes on
  assert.equal(ns.exportCovers("heatmap"), "steps 100\u2013599, 2 layers");
  assert.equal(ns.exportCovers("loss"), "steps 100\u2013599");
  ns.range = [7, 8];
  assert.equal(ns.exportCovers("loss"), "step 7");
  ns.range = [700, 900]; // nothing of it is there yet
  assert.equal(ns.exportCovers("loss"), "step 700");
});

test("one layer is no layers, and modules are modules", () => {
  const { ns } = page();
  ns.heatmap.kinds = ["layer", "parameter"];
  assert.match(ns.exportCovers(), /, 1 layer$/);
  ns.heatmap.fields.statistic = "rms";
  ns.heatmap.kinds = ["module", "module"];
  assert.match(ns.exportCovers(), /, 2 modules$/);
});

test("without a run, or before its first step, it says so", () => {
  const { ns } = page({ run: null });
  assert.equal(ns.exportCovers(), "No run is shown.");
  ns.view.run = "a";
  ns.newestStep = null;
  assert.equal(ns.exportCovers("loss"), "no steps yet");
});

test("the whole run is asked for, unless a part of it is on screen", () => {
  const { ns, wanted } = page({ rank: 3 });
  ns.exportAs("json");
  assert.equal(wanted[0], "/api/v1/runs/a%2Fb/export?format=json&rank=3&heatmap=grad_norm");
  Object.assign(ns.view, { first: 0, end: 600 });
  ns.exportAs("csv", "loss");
  assert.equal(wanted[1], "/api/v1/runs/a%2Fb/export?format=csv&rank=3&first=0&end=600&heatmap=grad_norm&track=loss");
  Object.assign(ns.view, { first: null, end: null, window: 50 });
  ns.range = [550, 600];
  ns.exportAs("parquet");
  assert.match(wanted[2], /first=550&end=600/);
});

test("a page has the theme that is shown; other files have none", () => {
  const { ns, wanted } = page();
  ns.exportAs("html");
  ns.exportAs("json");
  same(wanted.map((address) => /theme=dark/.test(address)), [true, false]);
});

test("without a run nothing is asked for", () => {
  const { ns, wanted, answers, byId } = page({ run: null });
  ns.exportAs("html");
  ns.openExport();
  same([wanted.length, answers.length], [0, 0]);
  assert.equal(byId("export-said").textContent, "No run is shown.");
});

test("the dialog lists the tracks, and chooses the one that was meant", async () => {
  const { ns, byId, answers, answer, forms, wanted } = page({ rank: 2 });
  ns.openExport("log/acc");
  assert.equal(answers[0].address, "/api/v1/runs/a%2Fb/tracks?rank=2");
  same(forms.map((form) => form.disabled), [true, true]);
  await answer({ tracks: [{ id: "loss", title: "Loss" }, { id: "heatmap", title: "Heatmap" }, { id: "log/acc", title: "log/acc" }] });
  same(byId("export-choice").children.map((option) => [option.value, option.textContent]), [
    ["loss", "Loss (loss)"], ["heatmap", "Heatmap"], ["log/acc", "log/acc"],
  ]);
  assert.equal(byId("export-choice").value, "log/acc");
  same(forms.map((form) => form.disabled), [false, false]);
  byId("export-forms").dispatch("click", { target: forms[1] });
  assert.match(wanted[0], /format=csv.*track=log%2Facc$/);
});

test("a rank that has recorded nothing has no files", async () => {
  const { ns, byId, answer, forms } = page();
  ns.openExport();
  await answer({ tracks: [] });
  assert.equal(byId("export-said").textContent, "This rank has recorded nothing yet.");
  same(forms.map((form) => form.disabled), [true, true]);
});

test("why the tracks cannot be listed is said", async () => {
  const { ns, byId, answer, answers } = page();
  ns.openExport();
  await answer({ error: { message: "there is no run a/b" } }, false);
  assert.equal(byId("export-said").textContent, "The tracks cannot be listed: there is no run a/b.");
  byId("export-dialog").close();
  ns.openExport();
  answers[1].reject(new TypeError("failed"));
  for (let turn = 0; turn < 6; turn++) await Promise.resolve();
  assert.match(byId("export-said").textContent, /: the dashboard does not answer\.$/);
});

test("an answer to an older wish changes nothing", async () => {
  const { ns, byId, answer } = page();
  ns.openExport("old");
  byId("export-dialog").close();
  ns.openExport("loss");
  await answer({ tracks: [{ id: "old", title: "Old" }] }, true, 0);
  same(byId("export-choice").children, []);
  await answer({ tracks: [{ id: "loss", title: "Loss" }] }, true, 1);
  assert.equal(byId("export-choice").value, "loss");
});

test("over another dialog none is opened", () => {
  const { ns, window, byId, answers } = page();
  window.document.querySelector = () => byId("values");
  ns.openExport();
  same([answers.length, byId("export-dialog").open], [0, undefined]);
});
