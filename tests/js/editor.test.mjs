// Addresses that open a line in an editor (ns_88): file names come from trainings, and may be anything.
import assert from "node:assert/strict";
import { test } from "node:test";
import { open, same } from "./page.mjs";

// The page of somebody who has chosen this editor, or has a template of their own.
function editor(id, template = "") {
  const page = open(["00"]);
  page.window.localStorage = { getItem: () => JSON.stringify([id, template]), setItem() {} };
  page.window.MutationObserver = class { observe() {} };
  page.window.document.querySelectorAll = () => [];
  page.load("88");
  page.ns.startEditor();
  return page.ns;
}
const VSCODE = "vscode://file{path}:{line}";

test("a path becomes part of the editor's address, escaped", () => {
  const ns = editor("vscode");
  assert.equal(ns.editorAddress("/home/a/train.py", 12), "vscode://file/home/a/train.py:12");
  assert.equal(ns.editorAddress("/a b/#1?x=%&$&.py", 3), "vscode://file/a%20b/%231%3Fx%3D%25%26%24%26.py:3");
  assert.equal(ns.editorAddress("C:\\work\\a.py", 3), "vscode://file/C%3A/work/a.py:3");
  assert.equal(editor("pycharm").editorAddress("/a&line=9.py", 2), "pycharm://open?file=/a%26line%3D9.py&line=2");
});

test("what is no absolute path of this machine, or no line, has no address", () => {
  const ns = editor("vscode");
  for (const file of ["", "a.py", "./a.py", "//host/a.py", "\\\\host\\a.py", "C:a.py", "C:\\\\host\\a", "/a/../b.py", "C:\\..\\b", "http://a/b.py",
    "<string>", "/a\u202e.py", "/a\n.py", "/" + "a".repeat(4096), null, undefined, 7]) {
    assert.equal(ns.editorAddress(file, 1), null, String(file).slice(0, 40));
  }
  for (const line of [0, -1, 1.5, NaN, Infinity, "3", null, 2 ** 53]) assert.equal(ns.editorAddress("/a.py", line), null, String(line));
});

test("a template has a known scheme, and path and line once each", () => {
  const ns = editor("");
  for (const good of [VSCODE, "subl://open?url=file://{path}&line={line}", "vscode-insiders://file{path}:{line}"]) assert.equal(ns.templateProblem(good), "", good);
  for (const bad of ["", "javascript://{path}{line}", "https://a/{path}{line}", "file://{path}:{line}", "VSCODE://file{path}:{line}", " " + VSCODE,
    VSCODE + "\n", "vscode:file{path}:{line}", "vscode://file{path}", "vscode://{path}{path}:{line}", "vscode://<{path}>:{line}", VSCODE + "a".repeat(200)]) {
    assert.notEqual(ns.templateProblem(bad), "", bad);
  }
});

test("nothing is opened without an editor, or with a stored one that cannot be", () => {
  same(["", "own", "unknown"].map((id) => editor(id).editorAddress("/a.py", 1)), [null, null, null]);
  assert.equal(editor("own", "javascript://{path}{line}").editorAddress("/a.py", 1), null);
  assert.equal(editor("own", "zed://file{path}:{line}").editorAddress("/a.py", 1), "zed://file/a.py:1");
});
