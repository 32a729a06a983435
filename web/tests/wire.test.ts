/** Messages: the golden bytes of both sides, and what is none. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join as joinPath } from "node:path";
import { test } from "node:test";

import { encode } from "@msgpack/msgpack";

import { TapmlError } from "../src/errors";
import { hex, integer, join, packHeader, split, unpackHeader } from "../src/wire";

const FOLDER = joinPath(process.env["TAPML_ROOT"] ?? "..", "tests", "rpc", "golden");

interface Vector {
  name: string;
  header: unknown;
  chunk?: string;
  message: string;
}

const load = (file: string): Record<string, unknown> =>
  JSON.parse(readFileSync(joinPath(FOLDER, file), "utf-8")) as Record<string, unknown>;

const bytes = (text: string): Uint8Array<ArrayBuffer> => new Uint8Array(Buffer.from(text, "hex"));

/** The header a vector describes; byte strings are {"$bytes": hex}. */
function fromJson(value: unknown): unknown {
  if (Array.isArray(value)) {
    return value.map(fromJson);
  }
  if (typeof value === "object" && value !== null) {
    const map = value as Record<string, unknown>;
    return typeof map["$bytes"] === "string"
      ? bytes(map["$bytes"])
      : Object.fromEntries(Object.entries(map).map(([key, each]) => [key, fromJson(each)]));
  }
  return value;
}

/** Numbers alike, and byte strings as text, so that two headers can be compared. */
function plain(value: unknown): unknown {
  if (value instanceof Uint8Array) {
    return hex(value);
  }
  if (typeof value === "bigint") {
    return Number(value);
  }
  if (Array.isArray(value)) {
    return value.map(plain);
  }
  return typeof value === "object" && value !== null
    ? Object.fromEntries(Object.entries(value).map(([key, each]) => [key, plain(each)]))
    : value;
}

const isProtocolError = (error: unknown): boolean =>
  error instanceof TapmlError && error.kind === "ProtocolError";

for (const file of ["websocket.json", "tracker_websocket.json"]) {
  for (const vector of load(file)["messages"] as Vector[]) {
    test(`${file}: ${vector.name} is read, and written so that it is read alike`, () => {
      const header = fromJson(vector.header) as Record<string, unknown>;
      const sent = vector.chunk ?? "";
      const [read, chunk] = split(bytes(vector.message).buffer);
      assert.deepEqual(plain(read), plain(header));
      assert.equal(hex(chunk), sent);
      const [again, sameChunk] = split(join(header, bytes(sent)).buffer);
      assert.deepEqual(plain(again), plain(header));
      assert.equal(hex(sameChunk), sent);
    });
  }
}

const refused = load("websocket.json")["refused"] as { name: string; message: string }[] | undefined;
for (const { name, message } of refused ?? []) {
  test(`websocket.json: ${name} is refused`, () => assert.throws(() => split(bytes(message).buffer), isProtocolError));
}

test("announced elements must be there before memory is taken for them", () => {
  const nested = new Uint8Array(300_000).map((_, at) => [0xdd, 0, 0, 0xff, 0xff][at % 5] ?? 0);
  const whole = new Uint8Array([0x81, 0xa1, 0x61, ...nested]);
  const before = process.memoryUsage().rss;
  assert.throws(() => unpackHeader(whole), isProtocolError);
  assert.ok(process.memoryUsage().rss - before < 50 << 20);
});

test("what is no header is refused", () => {
  for (const value of [
    "c1",
    "93010203",
    "810102",
    "d40500",
    "81a161c6ffffffff",
    "81a161",
    "80c0",
    "c0",
    `81a161${"91".repeat(1000)}c0`,
  ]) {
    assert.throws(() => unpackHeader(bytes(value)), isProtocolError, value);
  }
  assert.throws(() => packHeader({ text: "x".repeat(1 << 20) }), isProtocolError);
});

test("integers of any length are read; floats that are none are refused", () => {
  const header = unpackHeader(bytes("81a161cf7fffffffffffffff"));
  assert.equal(header["a"], (1n << 63n) - 1n);
  assert.equal(integer(7n, "seven"), 7);
  for (const value of [-1, 1.5, "1", true, null, -1n, NaN]) {
    assert.throws(() => integer(value, "value"), isProtocolError);
  }
  assert.throws(() => integer(64, "stream", 63), isProtocolError);
});

test("a message ends with its header, or a chunk lies at a multiple of eight behind zeros", () => {
  const packed = encode({ type: "ping" });
  const message = (tail: number[]): ArrayBuffer =>
    new Uint8Array([packed.length, 0, 0, 0, ...packed, ...tail]).buffer;
  assert.equal(split(message([]))[1].length, 0);
  const gap = (8 - ((4 + packed.length) % 8)) % 8;
  assert.equal(split(message([...Array<number>(gap).fill(0), 9]))[1][0], 9);
  assert.throws(() => split(message(Array<number>(gap).fill(0))), isProtocolError);
  assert.throws(() => split(message([...Array<number>(gap).fill(1), 9])), isProtocolError);
  assert.throws(() => split(new ArrayBuffer(3)), isProtocolError);
});
