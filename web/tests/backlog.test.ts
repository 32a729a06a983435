/** How far a session runs ahead of the GPU, and what becomes of its work when it ends. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as passed } from "node:timers/promises";

import { Backlog } from "../src/backlog";
import { GpuClock } from "../src/gpu_clock";
import { Client, errorOf, serve, TENSORS } from "./client";
import { FakeGpu } from "./fake_gpu";

const CALL = ["call", 9, "op", TENSORS, {}, {}];

test("what a session that leaves had not submitted is dropped, and another goes on", async (t) => {
  const { fake, server, hung } = serve(t);
  const [leaver, other] = [new Client(server), new Client(server)];
  await leaver.prepare();
  await other.prepare();
  await leaver.batch([["program", "long", new Array(100).fill(CALL)]]);
  fake.forget();
  fake.busy = true;
  for (let batch = 0; batch < 20; batch += 1) {
    leaver.send([...(new Array(100).fill(CALL) as unknown[]), ["execute", "long", [], 0]]);
  }
  await passed(50);
  assert.equal(fake.count("submit"), 2);
  leaver.leave();
  const answer = other.batch([CALL, ["fence"]]);
  await passed(50);
  fake.finish();
  assert.equal((await answer)["error"], undefined);
  await passed(50);
  // Its two, and the other's one.
  assert.deepEqual([fake.count("submit"), fake.count("dispatchWorkgroups"), hung], [3, 2 * 9, []]);
});

test("a program waits for room as a batch does, and goes on", async (t) => {
  const { fake, server } = serve(t);
  const client = new Client(server);
  await client.prepare();
  await client.batch([["program", "long", new Array(12).fill(CALL)]]);
  fake.forget();
  fake.busy = true;
  const answer = client.batch([["execute", "long", [], 0], ["read", 2, 0, 256]]);
  await passed(50);
  assert.deepEqual([fake.count("submit"), fake.count("dispatchWorkgroups")], [2, 2 * 8]);
  fake.finish();
  assert.equal((await answer)["error"], undefined);
  assert.equal(fake.count("dispatchWorkgroups"), 2 * 12);
});

test("work that waits for room behind a kernel that does not end is named", async (t) => {
  const { fake, server } = serve(t);
  const client = new Client(server, 0.3);
  await client.prepare();
  fake.busy = true;
  client.send(new Array(100).fill(CALL) as unknown[]);
  const event = await client.control.message(1);
  assert.match(String(errorOf(event)["message"]), /earlier work, launching 2 kernels of 'op', ran longer/);
});

test("a clock adds up the short pieces of a session's work", async () => {
  const fake = new FakeGpu();
  const clock = new GpuClock(fake.gpu.device);
  const owner = {};
  fake.busy = true;
  const first = clock.submitted(owner);
  await passed(60);
  fake.finish();
  assert.ok((await first) >= 50);
  fake.busy = true;
  void clock.submitted(owner);
  await passed(60);
  assert.ok(clock.own(owner) >= 100);
  assert.ok(clock.own(owner) > clock.headMilliseconds);
  assert.equal(clock.own({}), 0);
});

test("a submit holds as many commands as take a fifth of a second", async () => {
  const backlog = new Backlog();
  const first = backlog.commands;
  const after = async (commands: number, milliseconds: number): Promise<number> => {
    backlog.submitted("work", commands, Promise.resolve(milliseconds));
    await passed(0);
    return backlog.commands;
  };
  assert.equal(await after(1, 1), 2 * first);
  for (let turn = 0; turn < 10; turn += 1) {
    await after(1, 1);
  }
  assert.equal(backlog.commands, 64);
  assert.equal(await after(64, 2000), 6);
  assert.equal(await after(6, 60_000), 1);
  assert.equal(await after(1, 1), 2);
});
