/** A browser that is slow to see finished work is made to look; others are left alone. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { noticed } from "../src/noticed";

/** Work that is done once something was submitted `submissions` times. */
function work(submissions: number, end: (resolve: (value: string) => void) => void) {
  let finish: (value: string) => void = () => undefined;
  const promise = new Promise<string>((resolve) => {
    finish = resolve;
  });
  const queue = {
    count: 0,
    submit(): undefined {
      this.count += 1;
      if (this.count === submissions) {
        end(finish);
      }
    },
  };
  return { queue, promise };
}

test("a browser that looks only when something is submitted is made to look", async () => {
  const { queue, promise } = work(3, (resolve) => resolve("done"));
  assert.equal(await noticed(queue, promise, true), "done");
  assert.equal(queue.count, 3);
});

test("nothing is submitted where the browser sees by itself, or the work is done", async () => {
  const { queue } = work(1, () => undefined);
  assert.equal(await noticed(queue, Promise.resolve(7), false), 7);
  assert.equal(await noticed(queue, Promise.resolve(8), true), 8);
  assert.equal(queue.count, 0);
});

test("a device that is lost meanwhile ends the wait with its error", async () => {
  const { queue } = work(1, () => undefined);
  const lost = new Promise<never>((_, reject) => setTimeout(reject, 5, new Error("lost")));
  await assert.rejects(noticed(queue, lost, true), /lost/);
});
