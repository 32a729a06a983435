/** A client of a page's server, as far as tests need one, on a GPU that only takes notes. */

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import type { TestContext } from "node:test";

import { encode } from "@msgpack/msgpack";

import { BlobStore } from "../src/blob_store";
import { DeviceServer, type Leg } from "../src/device_server";
import { VERSION, type Header } from "../src/wire";
import { FakeGpu } from "./fake_gpu";

const SHADER = `@group(0) @binding(0) var<storage, read_write> o : array<u32>;
@group(0) @binding(1) var<storage, read> a : array<u32>;
@compute @workgroup_size(64, 1, 1)
fn copy(@builtin(global_invocation_id) id : vec3<u32>) { o[id.x] = a[id.x]; }
`;
const PLAIN = new Uint8Array(0);
const NOBODY = { token: "", identity: "" };

/** An operator `op(a, o)` that goes over a workspace: two launches. */
function packed(): Uint8Array<ArrayBuffer> {
  const launch = (target: string, source: string): unknown[] => [
    "launch",
    "copy",
    [["buffer", target, 0], ["buffer", source, 0]],
    [1, 1, 1],
    [64, 1, 1],
    0,
  ];
  const parameters = [
    ["a", [64], "uint32", "input"],
    ["o", [64], "uint32", "output"],
  ];
  const code = new TextEncoder().encode(SHADER);
  const body = encode([
    "webgpu",
    [],
    [["wgsl", "source", "", code.length, []]],
    [["copy", "copy", 0, 64, 0, [], 0]],
    [["op", parameters, [launch("w", "a"), launch("o", "w")], [["w", 256]], []]],
    [],
  ]);
  const whole = new Uint8Array(16 + body.length + code.length);
  whole.set(new TextEncoder().encode("TAPMLLIB"));
  new DataView(whole.buffer).setUint32(8, 3, true);
  new DataView(whole.buffer).setUint32(12, body.length, true);
  whole.set(body, 16);
  whole.set(code, 16 + body.length);
  return whole;
}

export class Told implements Leg {
  readonly headers: Header[] = [];
  closed = "";
  private heard: () => void = () => undefined;

  send(header: Header): void {
    this.headers.push(header);
    this.heard();
  }

  close(_: number, reason: string): void {
    this.closed = reason;
  }

  /** The next message from number `place` on. */
  async message(place: number): Promise<Header> {
    while (this.headers.length <= place) {
      await new Promise<void>((resolve) => {
        this.heard = resolve;
      });
    }
    return this.headers[place] ?? {};
  }
}

export const TENSORS = [
  [1, 0, [64], "uint32"],
  [2, 0, [64], "uint32"],
];

/** A client of a server, as far as these tests need one. */
function digestOf(bytes: Uint8Array): string {
  return createHash("sha256").update(bytes).digest("hex");
}

export class Client {
  readonly control = new Told();
  readonly data = new Told();
  private readonly about: Header;
  private token = "";
  private sequence = 0;

  constructor(
    private readonly server: DeviceServer,
    deadline = 30,
  ) {
    const hello = {
      type: "hello",
      versions: [VERSION],
      lease: "",
      download_window: 1 << 22,
      kernel_deadline: deadline,
    };
    server.control(this.control, hello, NOBODY, "");
    this.about = { epoch: server.epoch, session: this.control.headers[0]?.["session"] };
  }

  send(commands: unknown[], chunk: Uint8Array<ArrayBuffer> = PLAIN): void {
    this.sequence += 1;
    const header = { ...this.about, type: "batch", sequence: this.sequence, commands };
    this.token = this.server.data(this.data, header, chunk, this.token);
  }

  /** Send a whole blob; it is answered behind those sent before. */
  put(bytes: Uint8Array<ArrayBuffer>): void {
    this.blob({ operation: "put", digest: digestOf(bytes), total: bytes.length, offset: 0 }, bytes);
  }

  private blob(asked: Header, bytes: Uint8Array<ArrayBuffer> = PLAIN): void {
    this.sequence += 1;
    const header = { ...this.about, type: "blob", sequence: this.sequence, ...asked };
    this.token = this.server.data(this.data, header, bytes, this.token);
  }

  leave(): void {
    this.server.control(this.control, { type: "goodbye" }, NOBODY, this.token);
  }

  async batch(commands: unknown[], chunk: Uint8Array<ArrayBuffer> = PLAIN): Promise<Header> {
    const place = this.data.headers.length;
    this.send(commands, chunk);
    return this.data.message(place);
  }

  /** Library 9 and buffers 1 and 2 of 256 bytes. */
  async prepare(): Promise<void> {
    const library = packed();
    const digest = digestOf(library);
    const place = this.data.headers.length;
    this.put(library);
    this.blob({ operation: "attach", digest });
    assert.equal((await this.data.message(place + 1))["value"], true);
    const done = await this.batch([
      ["load", 9, digest],
      ["allocate", 1, 256],
      ["allocate", 2, 256],
    ]);
    assert.equal(done["error"], undefined, JSON.stringify(done["error"]));
  }
}

export function serve(t: TestContext): { fake: FakeGpu; server: DeviceServer; hung: unknown[] } {
  const fake = new FakeGpu();
  const hung: unknown[] = [];
  const server = new DeviceServer(
    fake.gpu,
    new BlobStore(1 << 20),
    () => undefined,
    (error) => hung.push(error),
  );
  t.after(() => server.close("the test ends"));
  return { fake, server, hung };
}

export const errorOf = (done: Header): Header => (done["error"] ?? {}) as Header;
