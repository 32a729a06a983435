/** Whatever a lost GPU spoils first, what is told is the loss. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { inputError, TapmlError } from "../src/errors";
import { Loss } from "../src/runner/loss";

/** A device, and what loses it. */
function device(): [Loss, (message: string) => void] {
  let lose: (info: GPUDeviceLostInfo) => void = () => undefined;
  const lost = new Promise<GPUDeviceLostInfo>((resolve) => {
    lose = resolve;
  });
  const told = (message: string): void => {
    lose({ reason: "unknown", message } as GPUDeviceLostInfo);
  };
  return [new Loss({ lost } as GPUDevice), told];
}

const isLoss = (error: unknown): boolean =>
  error instanceof TapmlError &&
  error.kind === "DeviceLostError" &&
  error.message === "the GPU device was lost (unknown): gone; what it held is gone: load the model again";

test("work that a loss leaves hanging ends with it, and so does all work after it", async () => {
  const [loss, lose] = device();
  const hanging = loss.during(new Promise(() => undefined));
  lose("gone.");
  await assert.rejects(hanging, isLoss);
  await assert.rejects(loss.during(new Promise(() => undefined)), isLoss);
  assert.ok(isLoss(await loss.told));
});

test("what a loss spoils is told as the loss, even where that is told later", async () => {
  const [loss, lose] = device();
  const spoiled = loss.during(Promise.reject(new Error("mapping was aborted")));
  setImmediate(() => lose("gone"));
  await assert.rejects(spoiled, isLoss);
});

test("the results of work that has ended stay with nobody", async () => {
  const [loss] = device();
  const { gc } = globalThis;
  assert.ok(gc !== undefined, "the unit tests are run with --expose-gc");
  const results: WeakRef<object>[] = [];
  for (let step = 0; step < 4; step += 1) {
    const work = Promise.resolve({ step });
    results.push(new WeakRef(await loss.during(work)));
  }
  await new Promise((resolve) => setTimeout(resolve, 0));
  await gc({ execution: "async", type: "major" });
  assert.ok(results.slice(0, -1).every((each) => each.deref() === undefined));
});

test("an error of a device that is there stays what it is", async () => {
  const [loss] = device();
  const wrong = inputError("no token");
  const refused = new TapmlError("RemoteError", "validation");
  for (const error of [wrong, refused]) {
    await assert.rejects(loss.during(Promise.reject(error)), (found) => found === error);
  }
  assert.equal(await loss.during(Promise.resolve(3)), 3);
});
