// Messages of the live feed (ns_10), encoded here by hand and by an encoder of its own.
import assert from "node:assert/strict";
import { test } from "node:test";
import { open, random, same } from "./page.mjs";

const TYPES = { f4: Float32Array, f8: Float64Array, u1: Uint8Array, u2: Uint16Array };

// [key, dtype, drop, keep, tail] of each array.
function message(entries, fields = {}) {
  const arrays = entries.map(([key, dtype, drop, keep, tail]) => [key, dtype, drop, keep, tail.length]);
  const header = Buffer.from(JSON.stringify({ ...fields, arrays }));
  const length = Buffer.alloc(4);
  length.writeUInt32LE(header.length);
  const tails = entries.map(([, dtype, , , tail]) => Buffer.from(TYPES[dtype].from(tail).buffer));
  return Uint8Array.from(Buffer.concat([length, header, ...tails])).buffer;
}

test("bytes written out by hand are read as the layout says", () => {
  const { ns } = open(["00", "10"]);
  const header = '{"arrays":[["k","u2",0,0,2]],"x":"\u03b1"}';
  const bytes = [...Buffer.from(header)];
  const buffer = Uint8Array.from([bytes.length, 0, 0, 0, ...bytes, 0x01, 0x00, 0xfe, 0xff]).buffer;
  assert.equal(ns.decode(buffer).x, "\u03b1");
  same(ns.arrays.get("k"), Uint16Array.of(1, 65534));
});

test("every dtype arrives bit for bit, however long the header is", () => {
  for (let padding = 0; padding < 8; padding++) {
    const { ns } = open(["00", "10"]);
    const values = [["a", "f8", 0, 0, [1.5, NaN, -Infinity, 5e-324]], ["b", "u1", 0, 0, [0, 255, 7]], ["c", "f4", 0, 0, [0.5, -0]]];
    ns.decode(message(values, { padding: "x".repeat(padding) }));
    for (const [key, dtype, , , tail] of values) same(ns.arrays.get(key), TYPES[dtype].from(tail));
  }
});

test("a change drops first elements, keeps some and appends", () => {
  const { ns } = open(["00", "10"]);
  ns.decode(message([["k", "f8", 0, 0, [1, 2, 3, 4, 5]]]));
  ns.decode(message([["k", "f8", 2, 2, [9]]]));
  same(ns.arrays.get("k"), Float64Array.of(3, 4, 9));
  ns.decode(message([["k", "f8", 0, 1, []]])); // only cut
  same(ns.arrays.get("k"), Float64Array.of(3));
  ns.decode(message([["k", "u1", 0, 0, [8]]])); // another dtype begins anew
  same(ns.arrays.get("k"), Uint8Array.of(8));
});

test("what is on screen changes only when the arrays are shown", () => {
  const { ns } = open(["00", "10"]);
  assert.equal(ns.array("k").length, 0);
  ns.decode(message([["k", "f8", 0, 0, [1]]]));
  assert.equal(ns.array("k").length, 0);
  ns.showArrays();
  ns.decode(message([["k", "f8", 0, 1, [2]]]));
  same(ns.array("k"), Float64Array.of(1));
  ns.showArrays();
  same(ns.array("k"), Float64Array.of(1, 2));
});

test("a window that moves over a series is followed exactly", () => {
  const { ns } = open(["00", "10"]);
  const next = random(1);
  const series = Array.from({ length: 400 }, () => (next() < 0.05 ? NaN : next()));
  let held = [0, 0];
  for (let round = 0; round < 60; round++) {
    const first = held[0] + Math.floor(next() * 4), end = Math.max(first, held[1]) + Math.floor(next() * 9);
    const keep = Math.max(0, Math.min(held[1], end) - first);
    ns.decode(message([["k", "f8", Math.min(first, held[1]) - held[0], keep, series.slice(first + keep, end)]]));
    same(ns.arrays.get("k"), Float64Array.from(series.slice(first, end)), `round ${round}`);
    held = [first, end];
  }
});
