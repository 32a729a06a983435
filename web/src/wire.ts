/**
 * Messages of the tapml protocol: a bounded msgpack header and at most one chunk of raw bytes.
 *
 * Integers up to 2^53 are decoded to `number`, larger ones to `bigint`; only symbol values may be so
 * large.
 */

import { decode, encode } from "@msgpack/msgpack";

import { messageOf, protocolError } from "./errors";
import { checkForm } from "./msgpack_form";

export const VERSION = 3;
/** Of the messages between a tracker and its devices. */
export const TRACKER_VERSION = 2;
export const MAX_HEADER_BYTES = 1 << 20;
export const MAX_CHUNK_BYTES = 4 << 20;
export const MAX_MESSAGE_BYTES = MAX_HEADER_BYTES + MAX_CHUNK_BYTES + 16;
export const MAX_STRING_BYTES = 256 << 10;
export const MAX_ARRAY = 65536;
export const SUBPROTOCOL = "tapml.1";
export const TOKEN_PREFIX = "tapml-token.";

export type Header = Record<string, unknown>;

const BOUNDS = {
  text: MAX_STRING_BYTES,
  octets: MAX_STRING_BYTES,
  array: MAX_ARRAY,
  map: 4096,
  depth: 512,
};
const NO_CHUNK = new Uint8Array(0);

/** Encode a header; raises a ProtocolError if it is longer than any peer accepts. */
export function packHeader(header: Header): Uint8Array<ArrayBuffer> {
  const packed = encode(header, { maxDepth: 100 });
  if (packed.length > MAX_HEADER_BYTES) {
    throw protocolError(
      `a header of ${packed.length} bytes is over the bound of ${MAX_HEADER_BYTES}; ` +
        "send fewer commands per batch",
    );
  }
  return packed;
}

/** Decode a header; raises a ProtocolError unless it is a bounded map with text keys. */
export function unpackHeader(packed: Uint8Array): Header {
  if (packed.length > MAX_HEADER_BYTES) {
    throw protocolError(`header of ${packed.length} bytes; at most ${MAX_HEADER_BYTES} are allowed`);
  }
  let header: unknown;
  try {
    checkForm(packed, BOUNDS);
    header = decode(packed, { useBigInt64: true, mapKeyConverter: textKey });
  } catch (error) {
    throw protocolError(`header is not msgpack within bounds: ${messageOf(error)}`);
  }
  if (!isMap(header)) {
    throw protocolError("header must be a msgpack map");
  }
  return header;
}

function textKey(key: unknown): string {
  if (typeof key !== "string") {
    throw protocolError("a key of a map is text");
  }
  return key;
}

/** One binary WebSocket message; the chunk begins at a multiple of 8 bytes. */
export function join(header: Header, chunk: Uint8Array = NO_CHUNK): Uint8Array<ArrayBuffer> {
  const packed = packHeader(header);
  if (chunk.length > MAX_CHUNK_BYTES) {
    throw protocolError(`a chunk of ${chunk.length} bytes; at most ${MAX_CHUNK_BYTES} are allowed`);
  }
  const end = 4 + packed.length;
  const start = chunk.length > 0 ? aligned(end) : end;
  const whole = new Uint8Array(start + chunk.length);
  new DataView(whole.buffer).setUint32(0, packed.length, true);
  whole.set(packed, 4);
  whole.set(chunk, start);
  return whole;
}

/** Split a message; the chunk is a view of it. Raises a ProtocolError if it is malformed. */
export function split(message: ArrayBuffer): [Header, Uint8Array<ArrayBuffer>] {
  if (message.byteLength < 4 || message.byteLength > MAX_MESSAGE_BYTES) {
    throw protocolError(`a message of ${message.byteLength} bytes; it has 4 to ${MAX_MESSAGE_BYTES}`);
  }
  const length = new DataView(message).getUint32(0, true);
  const end = 4 + length;
  if (end > message.byteLength) {
    throw protocolError(`a header of ${length} bytes in a message of ${message.byteLength}`);
  }
  const header = unpackHeader(new Uint8Array(message, 4, length));
  if (end === message.byteLength) {
    return [header, new Uint8Array(0)];
  }
  const start = aligned(end);
  if (start >= message.byteLength) {
    throw protocolError("a message without a chunk ends with its header");
  }
  if (new Uint8Array(message, end, start - end).some((byte) => byte !== 0)) {
    throw protocolError("the gap before a chunk is zero");
  }
  if (message.byteLength - start > MAX_CHUNK_BYTES) {
    throw protocolError(`a chunk is at most ${MAX_CHUNK_BYTES} bytes`);
  }
  return [header, new Uint8Array(message, start)];
}

/** The next position in a chunk where a payload may start. */
export const aligned = (position: number): number => Math.ceil(position / 8) * 8;

export function isMap(value: unknown): value is Header {
  return (
    typeof value === "object" && value !== null && !Array.isArray(value) && !(value instanceof Uint8Array)
  );
}

/** Check an integer from 0 to `bound`. */
export function integer(value: unknown, what: string, bound = 2 ** 63): number {
  const number = typeof value === "bigint" ? Number(value) : value;
  const whole = typeof value === "bigint" || Number.isSafeInteger(number);
  if (typeof number === "number" && whole && number >= 0 && number <= bound) {
    return number;
  }
  throw protocolError(`${what} must be an integer from 0 to ${bound}, got ${shown(value)}`);
}

/** A client's name for an object of its session: any integer, those beyond 2^53 as `bigint`. */
export type Handle = number | bigint;

/** Integers that are echoed to their sender stay below this: larger ones would be rounded. */
export const MAX_EXACT = Number.MAX_SAFE_INTEGER;

/** Check a handle; one number has one form, however it was packed. */
export function handleOf(value: unknown): Handle {
  if (typeof value === "bigint" && value >= 0n) {
    const number = Number(value);
    return Number.isSafeInteger(number) ? number : value;
  }
  return integer(value, "handle", MAX_EXACT);
}

export function text(value: unknown, what: string, bound = 4096): string {
  if (typeof value === "string" && value.length <= bound) {
    return value;
  }
  throw protocolError(`${what} must be a string of at most ${bound} characters, got ${shown(value)}`);
}

export function octets(value: unknown, what: string, bound = MAX_STRING_BYTES): Uint8Array {
  if (value instanceof Uint8Array && value.length <= bound) {
    return value;
  }
  throw protocolError(`${what} must be at most ${bound} bytes, got ${shown(value)}`);
}

export function array(value: unknown, what: string, bound = MAX_ARRAY): unknown[] {
  if (Array.isArray(value) && value.length <= bound) {
    return value;
  }
  throw protocolError(`${what} must be an array of at most ${bound} elements, got ${shown(value)}`);
}

export function map(value: unknown, what: string): Header {
  if (isMap(value)) {
    return value;
  }
  throw protocolError(`${what} must be a map, got ${shown(value)}`);
}

/** A short readable form of any value. */
export function shown(value: unknown, most = 120, depth = 4): string {
  let text: string;
  if (value instanceof Uint8Array) {
    text = `${value.length} bytes`;
  } else if (Array.isArray(value)) {
    const items = depth > 0 ? value.slice(0, 40).map((item) => shown(item, most, depth - 1)) : ["..."];
    text = `[${items.join(", ")}]`;
  } else if (isMap(value)) {
    const items =
      depth > 0
        ? Object.entries(value)
            .slice(0, 40)
            .map(([key, item]) => `${key}: ${shown(item, most, depth - 1)}`)
        : ["..."];
    text = `{${items.join(", ")}}`;
  } else {
    text = typeof value === "string" ? `'${value}'` : String(value);
  }
  return text.length <= most ? text : `${text.slice(0, most)}...`;
}

/** Bytes as hexadecimal. */
export const hex = (data: Uint8Array): string =>
  Array.from(data, (byte) => byte.toString(16).padStart(2, "0")).join("");
