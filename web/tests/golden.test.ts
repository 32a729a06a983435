/** The very files that hold Python's evaluator: the same launches, or an error where it has one. */

import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { planCall, type CallPlan, type PlannedArgument } from "../src/call_plan";
import { TapmlError } from "../src/errors";
import { unpackLibrary } from "../src/library_format";

const FOLDER = join(process.env["TAPML_ROOT"] ?? "..", "tests", "targets", "golden");

interface Vector {
  library: string;
  call: string;
  tensors: [number[], string][];
  symbols: Record<string, number>;
  plan?: unknown;
  error?: string;
}

function argument(planned: PlannedArgument): unknown[] {
  switch (planned.kind) {
    case "buffer":
      return ["buffer", planned.slot, planned.byteOffset, planned.nbytes];
    case "tensor":
      return ["tensor", planned.slot, planned.byteOffset, planned.shape.map(Number), planned.dtype];
    case "scalar":
      return ["scalar", written(planned.value), planned.dtype];
  }
}

/** An integer in decimal, a quotient as the bytes of its float64. */
function written(value: bigint | number): string {
  if (typeof value === "bigint") {
    return String(value);
  }
  const bytes = new DataView(new ArrayBuffer(8));
  bytes.setFloat64(0, value);
  return bytes.getBigUint64(0).toString(16).padStart(16, "0");
}

const plain = (plan: CallPlan): unknown => ({
  workspaces: plan.workspaces.map((each) => [each.name, each.nbytes, each.shared]),
  launches: plan.launches.map((launch) => ({
    kernel: launch.kernel,
    grid: launch.grid.map(Number),
    block: launch.block.map(Number),
    step: launch.step,
    dynamic_shared_bytes: Number(launch.dynamicSharedBytes),
    arguments: launch.arguments.map(argument),
  })),
});

for (const file of readdirSync(FOLDER).sort()) {
  test(`${file}: a call launches what it launches in Python`, () => {
    const vector = JSON.parse(readFileSync(join(FOLDER, file), "utf-8")) as Vector;
    const library = unpackLibrary(new Uint8Array(Buffer.from(vector.library, "base64")));
    const plan = (): CallPlan =>
      planCall(
        library,
        vector.call,
        vector.tensors.map(([shape, dtype]) => ({ shape: shape.map(BigInt), dtype })),
        new Map(Object.entries(vector.symbols).map(([name, value]) => [name, BigInt(value)])),
      );
    if (vector.error === undefined) {
      assert.deepEqual(plain(plan()), vector.plan);
    } else {
      assert.throws(plan, (error) => error instanceof TapmlError && error.kind === "InputError");
    }
  });
}
