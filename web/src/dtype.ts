/** Data types: the bits one element takes in storage. The names are those of `dtype.py`. */

import { inputError } from "./errors";

const BITS: ReadonlyMap<string, number> = new Map([
  ["float16", 16],
  ["float32", 32],
  ["float64", 64],
  ["int8", 8],
  ["int16", 16],
  ["int32", 32],
  ["int64", 64],
  ["uint8", 8],
  ["uint16", 16],
  ["uint32", 32],
  ["uint64", 64],
  ["bfloat16", 16],
  ["float8_e4m3fn", 8],
  ["float8_e5m2", 8],
  ["int4", 4],
  ["uint4", 4],
  ["bool", 8],
]);

/** Bits of one element; raises an InputError for an unknown name. */
export function bitsOf(name: string): number {
  const bits = BITS.get(name);
  if (bits === undefined) {
    const known = [...BITS.keys()].sort().join(", ");
    throw inputError(`unknown dtype '${name}'; known ones: ${known}`);
  }
  return bits;
}

/** Bytes of the smallest addressable unit. */
export const itemsizeOf = (name: string): number => Math.max(1, bitsOf(name) / 8);

/** Bytes of `elements` elements, rounded up. */
export const nbytesOf = (name: string, elements: bigint): bigint =>
  (elements * BigInt(bitsOf(name)) + 7n) / 8n;
