/** A session's server on a GPU that only takes notes: what time and slow clients bring about. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as passed } from "node:timers/promises";

import { BlobStore } from "../src/blob_store";
import { DeviceServer, type Leg } from "../src/device_server";
import type { Gpu } from "../src/gpu";
import { shortened } from "../src/tracker";
import { VERSION, type Header } from "../src/wire";
import { Client, serve } from "./client";

const DEADLINE_SECONDS = 0.3;
const PIECE = 2 << 20;

/** A GPU that does everything at once and holds nothing. */
function idleGpu(): Gpu {
  const buffer = (size: number): object => ({
    size,
    destroy: () => undefined,
    mapAsync: () => Promise.resolve(),
    getMappedRange: (_: number, nbytes: number) => new ArrayBuffer(nbytes),
    unmap: () => undefined,
  });
  const device = {
    limits: { maxBufferSize: 1 << 30 },
    queue: { submit: () => undefined, onSubmittedWorkDone: () => Promise.resolve() },
    pushErrorScope: () => undefined,
    popErrorScope: () => Promise.resolve(null),
    createBuffer: ({ size }: { size: number }) => buffer(size),
    createCommandEncoder: () => ({ copyBufferToBuffer: () => undefined, finish: () => null }),
  };
  return { device, description: {}, features: new Set(), compiler: "unknown", name: "idle" } as unknown as Gpu;
}

class Told implements Leg {
  readonly headers: Header[] = [];
  closed = "";

  send(header: Header): void {
    this.headers.push(header);
  }

  close(_: number, reason: string): void {
    this.closed = reason;
  }

  types(): unknown[] {
    return this.headers.map((header) => header["type"]);
  }
}

test("a client that is slow to take a read is no kernel over its deadline", async () => {
  const hung: unknown[] = [];
  const server = new DeviceServer(
    idleGpu(),
    new BlobStore(1 << 20),
    () => undefined,
    (error) => hung.push(error),
  );
  const [control, data] = [new Told(), new Told()];
  const hello = {
    type: "hello",
    versions: [VERSION],
    lease: "lease",
    download_window: PIECE,
    kernel_deadline: DEADLINE_SECONDS,
  };
  const token = server.control(control, hello, { token: "lease", identity: "ada" }, "");
  const session = control.headers[0]?.["session"];
  const about = { epoch: server.epoch, session };
  const commands = [
    ["allocate", 1, 2 * PIECE],
    ["read", 1, 0, 2 * PIECE],
  ];
  server.data(data, { ...about, type: "batch", sequence: 1, commands }, new Uint8Array(0), "");
  await passed(4 * 1000 * DEADLINE_SECONDS);
  assert.deepEqual([hung, control.closed, data.types()], [[], "", ["data"]]);
  server.data(data, { ...about, type: "credit", bytes: PIECE }, new Uint8Array(0), token);
  await passed(0);
  for (let turn = 0; turn < 100 && data.headers.length < 3; turn += 1) {
    await passed(10);
  }
  assert.deepEqual(data.types(), ["data", "data", "done"]);
  server.close("the test ends");
});

test("a reason of any text fits a close frame", () => {
  for (const reason of ["", "plain", "x".repeat(500), "\u00e9".repeat(100), "\u{1f600}".repeat(60)]) {
    const said = shortened(reason);
    assert.ok(reason.startsWith(said));
    assert.ok(new TextEncoder().encode(said).length <= 123);
    assert.ok(reason.length > 30 || said === reason);
  }
});

test("a batch whose session ends while it waits for a blob makes nothing", async (t) => {
  const { server } = serve(t);
  const client = new Client(server);
  client.put(new Uint8Array(1 << 16));
  client.send([["allocate", 1, 4096]]);
  client.leave();
  const other = new Client(server);
  other.put(new Uint8Array(1 << 16));
  await other.data.message(0);
  assert.equal(server.deviceBytes, 0);
});
