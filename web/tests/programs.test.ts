/** Programs, deadlines and late errors of a session, on a GPU that only takes notes. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as passed } from "node:timers/promises";

import { Client, errorOf, serve, TENSORS } from "./client";

test("a step that is a program is one submit and one answer, and makes nothing new", async (t) => {
  const { fake, server } = serve(t);
  const client = new Client(server);
  await client.prepare();
  const program = [
    ["write", 1, 0, 256, 0],
    ["call", 9, "op", TENSORS, {}, {}],
    ["read", 2, 0, 256],
  ];
  await client.batch([["program", "step", program]]);
  const step = [["execute", "step", [], 0]];
  await client.batch(step, new Uint8Array(256));
  for (let turn = 0; turn < 3; turn += 1) {
    const before = client.data.headers.length;
    fake.forget();
    const done = await client.batch(step, new Uint8Array(256));
    assert.deepEqual(done["results"], [[[0, 2], [0, 256]]]);
    assert.equal(client.data.headers.length, before + 1);
    const seen = ["submit", "createCommandEncoder", "writeBuffer", "dispatchWorkgroups"];
    assert.deepEqual(seen.map((name) => fake.count(name)), [1, 1, 1, 2]);
    const made = ["createBuffer", "createBindGroup"].map((name) => fake.count(name));
    assert.deepEqual(made, [0, 0]);
  }
});

test("a write between calls keeps its place", async (t) => {
  const { fake, server } = serve(t);
  const client = new Client(server);
  await client.prepare();
  fake.forget();
  await client.batch(
    [
      ["call", 9, "op", TENSORS, {}, {}],
      ["write", 1, 0, 256, 0],
      ["call", 9, "op", TENSORS, {}, {}],
    ],
    new Uint8Array(256),
  );
  assert.deepEqual([fake.count("submit"), fake.count("writeBuffer")], [2, 1]);
});

test("memory that is freed behind the call that uses it is destroyed behind its submit", async (t) => {
  const { fake, server } = serve(t);
  const client = new Client(server);
  await client.prepare();
  fake.forget();
  const { destroyed } = fake;
  const done = await client.batch([
    ["call", 9, "op", TENSORS, {}, {}],
    ["free", 1],
    ["free", 2],
  ]);
  assert.equal(done["error"], undefined);
  assert.deepEqual([fake.count("submit"), fake.destroyed - destroyed], [1, 2]);
});

test("a read that nobody takes to its end leaves no memory behind", async (t) => {
  const { fake, server } = serve(t);
  const client = new Client(server);
  await client.batch([["allocate", 1, 10 << 20]]);
  fake.forget();
  const { destroyed } = fake;
  client.send([["read", 1, 0, 10 << 20]]);
  // So much a client takes without saying more.
  await client.data.message(2);
  client.leave();
  await passed(0);
  assert.equal(fake.destroyed - destroyed, 1 + fake.count("createBuffer"));
});

test("a program's paste is refused when it runs, where the blob is not attached", async (t) => {
  const { server } = serve(t);
  const client = new Client(server);
  await client.prepare();
  const paste = ["paste", 1, 0, "0".repeat(64), 0, 4];
  const recorded = await client.batch([["program", "bring", [paste]]]);
  assert.equal(recorded["error"], undefined);
  const done = await client.batch([["execute", "bring", [], 0]]);
  const { kind, message, program, place } = errorOf(done);
  assert.deepEqual([kind, program, place], ["InputError", "bring", 0]);
  assert.match(String(message), /not attached to this session/);
});

test("handles of 64 bits are told apart", async (t) => {
  const { server } = serve(t);
  const client = new Client(server);
  const [one, other] = [2n ** 60n, 2n ** 60n + 1n];
  const made = await client.batch([
    ["allocate", one, 8],
    ["allocate", other, 16],
    ["allocate", 5n, 4],
    ["read", 5, 0, 4],
    ["read", other, 0, 16],
  ]);
  assert.equal(made["error"], undefined, JSON.stringify(made["error"]));
  const read = await client.batch([["free", other], ["read", one, 0, 8], ["read", other, 0, 16]]);
  assert.equal(errorOf(read)["index"], 2);
});

test("a workspace for which there was no memory is not bound by the next call", async (t) => {
  const { fake, server } = serve(t);
  const client = new Client(server);
  await client.prepare();
  const call = [["call", 9, "op", TENSORS, {}, {}]];
  fake.failing.push("out-of-memory");
  const refused = await client.batch(call);
  assert.equal(errorOf(refused)["kind"], "SetupError", JSON.stringify(refused));
  await client.batch([["reset"]]);
  fake.forget();
  const done = await client.batch(call);
  assert.equal(done["error"], undefined);
  assert.deepEqual([fake.count("createBuffer"), fake.count("createBindGroup")], [1, 2]);
});

test("waiting behind another session's kernel is no time of one's own", async (t) => {
  const { fake, server, hung } = serve(t);
  const [slow, quick] = [new Client(server), new Client(server, 0.3)];
  await slow.prepare();
  fake.busy = true;
  slow.send([["call", 9, "op", TENSORS, {}, {}], ["fence"]]);
  quick.send([["allocate", 1, 8], ["fence"]]);
  const answers = [slow.data.message(1), quick.data.message(0)];
  await passed(1200);
  assert.deepEqual([quick.control.closed, slow.control.closed, hung], ["", "", []]);
  fake.finish();
  for (const answer of answers) {
    assert.equal((await answer)["error"], undefined);
  }
});

test("what a program encodes behind a fence is submitted before another session goes on", async (t) => {
  const { fake, server } = serve(t);
  const clients = [new Client(server), new Client(server)];
  const program = [["fence"], ["copy", 1, 0, 2, 0, 256]];
  for (const client of clients) {
    await client.prepare();
    await client.batch([["program", "wait", program]]);
  }
  fake.forget();
  fake.busy = true;
  const answers = clients.map((client) => client.batch([["execute", "wait", [], 0]]));
  await passed(0);
  fake.finish();
  for (const answer of answers) {
    assert.equal((await answer)["error"], undefined);
  }
  const seen = ["createCommandEncoder", "submit"].map((name) => fake.count(name));
  assert.deepEqual(seen, [2, 2]);
});

test("a session over its deadline ends alone, as long as the GPU comes back", async (t) => {
  const { fake, server, hung } = serve(t);
  const [hasty, other] = [new Client(server, 0.2), new Client(server)];
  await hasty.prepare();
  fake.busy = true;
  hasty.send([["call", 9, "op", TENSORS, {}, {}], ["fence"]]);
  other.send([["allocate", 1, 8], ["fence"]]);
  const event = await hasty.control.message(1);
  assert.equal(errorOf(event)["kind"], "KernelTimeoutError");
  await passed(600);
  assert.deepEqual([other.control.closed, hung], ["", []]);
  fake.finish();
  assert.equal((await other.data.message(0))["error"], undefined);
});

test("a kernel of nobody's that does not end costs the GPU", async (t) => {
  const { fake, server, hung } = serve(t);
  const client = new Client(server, 0.2);
  await client.prepare();
  fake.busy = true;
  client.send([["call", 9, "op", TENSORS, {}, {}], ["fence"]]);
  await client.control.message(1);
  for (let turn = 0; turn < 1000 && hung.length === 0; turn += 1) {
    await passed(20);
  }
  assert.match(String(hung[0]), /has held the GPU/);
});
