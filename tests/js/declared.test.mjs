// The declarations name what the scripts set, and nothing else.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { setMembers, typedMembers, untyped } from "./declare.mjs";

test("every member that is declared with a type is set by a script", () => {
  const members = setMembers();
  assert.ok(members.has("byId") && typedMembers().has("byId"));
  assert.deepEqual([...typedMembers()].filter((name) => !members.has(name)), []);
});

test("the list of members without a type is the one that npm run declare writes", () => {
  assert.equal(readFileSync(new URL("untyped.d.ts", import.meta.url), "utf8"), untyped(), "cd tests/js && npm run declare");
});
