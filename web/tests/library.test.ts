/** Packed Libraries that are cut, changed or inconsistent are refused, and nothing else happens. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { encode } from "@msgpack/msgpack";

import { TapmlError } from "../src/errors";
import { evaluate, expressionFrom } from "../src/expression";
import { unpackLibrary } from "../src/library_format";

const GOLDEN = join(process.env["TAPML_ROOT"] ?? "..", "tests", "targets", "golden");

const packed = (name: string): Uint8Array => {
  const vector = JSON.parse(readFileSync(join(GOLDEN, `${name}.json`), "utf-8")) as {
    library: string;
  };
  return new Uint8Array(Buffer.from(vector.library, "base64"));
};

const isProtocolError = (error: unknown): boolean =>
  error instanceof TapmlError && error.kind === "ProtocolError";

/** A Library of one operator with these parts of its header changed. */
function pack(change: (header: unknown[]) => void): Uint8Array {
  const parameter = ["a", ["n"], "float32", "inout"];
  const launch = ["launch", "k", [["buffer", "a", 0]], [1, 1, 1], [1, 1, 1], 0];
  const header: unknown[] = [
    "webgpu",
    [],
    [["wgsl", "source", "", 2, []]],
    [["k", "k", 0, 0, 0, [], 0]],
    [["op", [parameter], [launch], [], []]],
    [],
  ];
  change(header);
  const body = encode(header);
  const whole = new Uint8Array(16 + body.length + 2);
  whole.set(new TextEncoder().encode("TAPMLLIB"));
  new DataView(whole.buffer).setUint32(8, 3, true);
  new DataView(whole.buffer).setUint32(12, body.length, true);
  whole.set(body, 16);
  return whole;
}

test("a Library is read", () => {
  const library = unpackLibrary(pack(() => undefined));
  assert.deepEqual([...library.operators.keys()], ["op"]);
  assert.equal(library.modules[0]?.code.length, 2);
});

test("a Library cut anywhere is refused", () => {
  const whole = packed("operator");
  for (let end = 0; end < whole.length; end += 7) {
    assert.throws(() => unpackLibrary(whole.subarray(0, end)), isProtocolError);
  }
});

test("a Library with any byte changed is read or refused, and nothing else", () => {
  const whole = packed("windows");
  for (let at = 0; at < whole.length; at += 1) {
    for (const value of [0x00, 0x7f, 0x91, 0xc1, 0xdd, 0xff]) {
      const changed = whole.slice();
      changed[at] = value;
      try {
        unpackLibrary(changed);
      } catch (error) {
        assert.ok(isProtocolError(error), `byte ${at} as ${value}: ${String(error)}`);
      }
    }
  }
});

const WRONG: Record<string, unknown[]> = {
  "a kernel that is not there": [4, [["op", [], [["launch", "x", [], [1, 1, 1], [1, 1, 1], 0]], [], []]]],
  "a module that is not there": [3, [["k", "k", 1, 0, 0, [], 0]]],
  "shared memory that the kernel does not have": [
    4,
    [["op", [], [["launch", "k", [], [1, 1, 1], [1, 1, 1], 64]], [], []]],
  ],
  "a quotient of another dtype": [
    4,
    [["op", [], [["launch", "k", [["scalar", 1, "int32", 3]], [1, 1, 1], [1, 1, 1], 0]], [], []]],
  ],
  "a subgroup of a negative width": [3, [["k", "k", 0, 0, 0, [], -1]]],
  "a module of an unknown kind": [2, [["wgsl", "text", "", 2, []]]],
  "a symbol that nothing gives": [4, [["op", [], [["bind", "s", "unknown"]], [], []]]],
  "names out of order": [3, [["k", "k", 0, 0, 0, [], 0], ["j", "j", 0, 0, 0, [], 0]]],
  "a function name with a space": [3, [["k", "k k", 0, 0, 0, [], 0]]],
  "a name that cannot be printed": [0, "web\u0007gpu"],
  "an unknown dtype": [4, [["op", [["a", [], "float33", "input"]], [], [], []]]],
  "an unknown role": [4, [["op", [["a", [], "float32", "both"]], [], [], []]]],
  "an operation of too few operands": [4, [["op", [], [["bind", "s", ["add", 1]]], [], []]]],
  "an unknown operation": [4, [["op", [], [["bind", "s", ["pow", 1, 2]]], [], []]]],
  "a map": [1, {}],
  "a build option of another form": [2, [["wgsl", "source", "", 2, ["-O3"]]]],
  "an entry named like an operator": [5, [["op", [], [], [], [], []]]],
};

for (const [name, [place, value]] of Object.entries(WRONG)) {
  test(`${name} is refused`, () => {
    assert.throws(
      () => unpackLibrary(pack((header) => (header[place as number] = value))),
      isProtocolError,
    );
  });
}

test("expressions nest to a bound, and negative shifts have no value", () => {
  let nested: unknown = 1;
  for (let depth = 0; depth < 65; depth += 1) {
    nested = ["not", nested];
  }
  assert.throws(() => expressionFrom(nested), isProtocolError);
  for (const name of ["shift_left", "shift_right"]) {
    assert.throws(
      () => evaluate(expressionFrom([name, 1, -1]), new Map()),
      (error) => error instanceof TapmlError && error.kind === "InputError",
    );
  }
  assert.equal(evaluate(expressionFrom(["shift_left", 1, 1000]), new Map()), 1n << 63n);
});
