// How well a few letters fit a name (ns_82).
import assert from "node:assert/strict";
import { test } from "node:test";
import { open, random } from "./page.mjs";

const { ns } = open(["00", "82"]);
const score = (letters, name) => ns.fuzzyScore(letters, name);
const better = (letters, first, second) => {
  assert.ok(score(letters, first) > score(letters, second), `${letters}: ${first} before ${second}`);
};

test("letters that do not stand in the name in their order do not fit", () => {
  for (const [letters, name] of [["x", "loss"], ["sol", "loss"], ["losss", "loss"], ["a", ""]]) {
    assert.equal(score(letters, name), -1, `${letters} in ${name}`);
  }
});

test("letters fit exactly where they are a subsequence of the name", () => {
  const next = random(7), letter = () => "abc."[Math.floor(4 * next())];
  const word = (most) => Array.from({ length: 1 + Math.floor(most * next()) }, letter).join("");
  const fits = (letters, name) => new RegExp([...letters].map((each) => (each === "." ? "\\." : each)).join("[^]*")).test(name);
  let fitting = 0;
  for (let round = 0; round < 500; round++) {
    const letters = word(4), name = word(10);
    fitting += fits(letters, name);
    assert.equal(score(letters, name) > -1, fits(letters, name), `${letters} in ${name}`);
  }
  assert.ok(fitting > 100 && fitting < 400);
});

test("spaces and the size of letters do not count", () => {
  assert.equal(score("BL 0", "blocks.0"), score("bl0", "Blocks.0"));
});

test("a whole piece of the name is better than letters here and there", () => {
  better("spike", "Loss spike at step 3", "some parts in keys e");
  assert.equal(score("ab", "ab"), 100 * 2 + 50 - 2 / 8); // by hand
});

test("beginnings of words are better than their middles", () => {
  better("run", "new run", "brunch");
  better("bm", "blocks.mlp", "abacmake");
});

test("letters side by side are better than apart", () => {
  better("attqkv", "attn.qkv", "axtxtxqxkxvx");
  better("abcd", "ab.cd", "a.b.c.d"); // even than beginnings
});

test("of two names that fit alike the shorter one is better", () => {
  better("layer", "layer", "layer.of.some.other.thing");
  better("bl1", "blocks.1", "blocks.1.attention.projection");
});

test("nothing typed fits everything a little less than nothing", () => {
  assert.ok(score("", "any name") <= 0);
});
