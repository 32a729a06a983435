/** What is read from a kernel's WGSL, and what is refused rather than guessed. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { TapmlError } from "../src/errors";
import { readShader, withoutComments, writtenText } from "../src/shader";

const PLAIN = `
// var<storage, read_write> not_one;  @binding(9)
struct PODArgs { n: i32, scale: f32, packGridDimX: u32 }
@group(0) @binding(1) var<storage, read_write> o : array<f32>;
@group(0) @binding(0) var<storage, read> a : array<f32>; /* a /* nested */ comment @binding */
@group(0) @binding(2) var<uniform> podArgs : PODArgs;
var<workgroup> shared : array<vec3<f32>, 10>;
@compute @workgroup_size(8, 4u)
fn add(@builtin(workgroup_id) block : vec3<u32>) { o[0] = a[0]; }
`;

test("bindings, scalars, workgroup and its memory are read", () => {
  const shape = readShader(PLAIN);
  assert.equal(shape.symbol, "add");
  assert.deepEqual(shape.buffers, ["read", "read_write"]);
  assert.deepEqual(shape.scalars, ["int32", "float32"]);
  assert.equal(shape.packsGrid, true);
  assert.deepEqual(shape.workgroup, [8, 4, 1]);
  assert.equal(shape.workgroupBytes, 160);
});

test("a read binding can be made a written one, and nothing else changes", () => {
  const text = writtenText(PLAIN, readShader(PLAIN), new Set([0]));
  assert.equal(text, PLAIN.replace("<storage, read> a", "<storage, read_write> a"));
  assert.deepEqual(readShader(text).buffers, ["read_write", "read_write"]);
});

test("comments become blanks, and lines stay", () => {
  assert.equal(withoutComments("a // b\nc /* d\n /* e */ f */ g"), `a     \nc     \n${" ".repeat(14)}g`);
});

const WRONG: Record<string, (text: string) => string> = {
  "another group": (text) => text.replace("@group(0) @binding(0)", "@group(1) @binding(0)"),
  "a gap": (text) => text.replace("@binding(2)", "@binding(3)"),
  "a binding in another form": (text) => text.replace("@group(0) @binding(1)", "@binding(1) @group(0)"),
  "a uniform in the middle": (text) => text.replace("@binding(2)", "@binding(0)"),
  "a write-only buffer": (text) => text.replace("read_write> o", "write> o"),
  "no struct": (text) => text.replace("struct PODArgs", "struct Others"),
  "a member of eight bytes": (text) => text.replace("n: i32", "n: vec2<f32>"),
  "packGridDimX in the middle": (text) => text.replace("n: i32", "packGridDimX: u32, n: i32"),
  "two entry points": (text) => `${text}@compute @workgroup_size(1) fn other() {}`,
  "a size that is no number": (text) => text.replace("8, 4u", "WIDTH"),
  "an empty workgroup": (text) => text.replace("8, 4u", "0"),
  "an enable line": (text) => `enable f16;\n${text}`,
};

for (const [name, change] of Object.entries(WRONG)) {
  test(`${name} is refused`, () => {
    assert.throws(
      () => readShader(change(PLAIN)),
      (error) => error instanceof TapmlError && error.kind === "CompileError",
    );
  });
}
