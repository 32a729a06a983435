/** Streams weights to the GPU: one safetensors file, in parts. */

import { bitsOf, nbytesOf } from "../dtype";
import { inputError, messageOf } from "../errors";
import type { DeviceBuffer, Memory } from "../memory";
import { workDone } from "../noticed";
import type { Steps } from "../steps";
import type { Folder } from "./folder";
import type { StoredFile, TensorSpecification } from "./manifest";

const MAX_HEADER_BYTES = 16 << 20;
const PREFIX_BYTES = 8;
const METADATA = "__metadata__";
/** Parts fetched ahead while one is hashed and written. */
const AHEAD = 3;
const DTYPES: ReadonlyMap<string, string> = new Map([
  ["F64", "float64"],
  ["F32", "float32"],
  ["F16", "float16"],
  ["BF16", "bfloat16"],
  ["F8_E4M3", "float8_e4m3fn"],
  ["F8_E5M2", "float8_e5m2"],
  ["I64", "int64"],
  ["I32", "int32"],
  ["I16", "int16"],
  ["I8", "int8"],
  ["U64", "uint64"],
  ["U32", "uint32"],
  ["U16", "uint16"],
  ["U8", "uint8"],
  ["BOOL", "bool"],
]);

/** A weight and its buffer. */
export interface Weight extends TensorSpecification {
  readonly name: string;
  readonly buffer: DeviceBuffer;
}

interface Placed {
  readonly buffer: DeviceBuffer;
  /** Bytes from the start of the file. */
  readonly start: number;
  readonly end: number;
}

/**
 * Fetch all parts and write each weight to its buffer; `progress` takes newly fetched bytes, and
 * `begun` is called once the first part, with the header, is checked.
 */
export async function loadWeights(
  folder: Folder,
  parts: readonly StoredFile[],
  weights: readonly Weight[],
  memory: Memory,
  steps: Steps,
  progress: (nbytes: number) => void,
  begun: () => void,
): Promise<void> {
  const total = parts.reduce((sum, part) => sum + part.bytes, 0);
  const coming: Promise<Uint8Array<ArrayBuffer>>[] = [];
  let asked = 0;
  let start = 0;
  let placed: readonly Placed[] | undefined;
  for (const stored of parts) {
    while (asked < parts.length && coming.length < AHEAD) {
      const next = parts[asked];
      asked += 1;
      if (next !== undefined) {
        const part = folder.file(next, progress);
        // Unhandled if an earlier part fails.
        part.catch(() => null);
        coming.push(part);
      }
    }
    const part = await coming.shift();
    if (part === undefined) {
      throw inputError(`no part ${stored.name}`);
    }
    if (placed === undefined) {
      placed = place(part, total, weights);
      begun();
    }
    const end = start + part.length;
    for (const each of placed) {
      const from = Math.max(each.start, start);
      const to = Math.min(each.end, end);
      if (from < to) {
        memory.write(steps, each.buffer, from - each.start, part.subarray(from - start, to - start));
      }
    }
    start = end;
    // Wait, so that the browser holds at most one part in memory.
    await steps.settle();
    await workDone(memory.device.queue);
  }
}

/** Locate each weight in the file by its header. */
export function place(first: Uint8Array, total: number, weights: readonly Weight[]): readonly Placed[] {
  const view = new DataView(first.buffer, first.byteOffset, first.byteLength);
  const length = first.length < PREFIX_BYTES ? -1n : view.getBigUint64(0, true);
  if (length < 0n || length > MAX_HEADER_BYTES || Number(length) > first.length - PREFIX_BYTES) {
    throw inputError(`the weights are damaged: they begin with a header of ${length} bytes`);
  }
  const dataStart = PREFIX_BYTES + Number(length);
  const header = headerOf(first.subarray(PREFIX_BYTES, dataStart));
  return weights.map((weight) => {
    const found = header.get(weight.name);
    const has = found === undefined ? "nothing" : `${found.dtype} [${found.shape.join(", ")}]`;
    if (found?.dtype !== weight.dtype || found.shape.join() !== weight.shape.join()) {
      throw inputError(
        `the kernels take ${weight.name} as ${weight.dtype} [${weight.shape.join(", ")}], and the ` +
          `weights hold ${has}: make the folder again with \`tapml package --browser\``,
      );
    }
    const start = dataStart + found.start;
    const end = dataStart + found.end;
    if (end > total || end - start !== weight.buffer.nbytes) {
      throw inputError(`the weights are damaged: ${weight.name} takes bytes ${start} to ${end}`);
    }
    return { buffer: weight.buffer, start, end };
  });
}

interface Stored extends TensorSpecification {
  readonly start: number;
  readonly end: number;
}

function headerOf(content: Uint8Array): ReadonlyMap<string, Stored> {
  let data: unknown;
  try {
    data = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(content));
  } catch (error) {
    throw inputError(`the weights are damaged: their header is not JSON (${messageOf(error)})`);
  }
  if (typeof data !== "object" || data === null || Array.isArray(data)) {
    throw inputError("the weights are damaged: their header is not a JSON object");
  }
  return new Map(
    Object.entries(data)
      .filter(([name]) => name !== METADATA)
      .map(([name, value]) => [name, storedOf(name, value)]),
  );
}

const isCount = (value: unknown): value is number =>
  typeof value === "number" && Number.isSafeInteger(value) && value >= 0;

function storedOf(name: string, value: unknown): Stored {
  const fields = value as { dtype?: unknown; shape?: unknown; data_offsets?: unknown } | null;
  const dtype = DTYPES.get(fields?.dtype as string);
  const shape: unknown = fields?.shape;
  const offsets: unknown = fields?.data_offsets;
  if (
    dtype === undefined ||
    !Array.isArray(shape) ||
    !shape.every(isCount) ||
    !Array.isArray(offsets) ||
    offsets.length !== 2 ||
    !offsets.every(isCount)
  ) {
    throw inputError(`the weights are damaged: ${name.slice(0, 80)} is invalid in their header`);
  }
  const [start = 0, end = 0] = offsets;
  const elements = shape.reduce((product, extent) => product * BigInt(extent), 1n);
  if (BigInt(end) - BigInt(start) !== nbytesOf(dtype, elements) || bitsOf(dtype) < 8) {
    throw inputError(`the weights are damaged: the size of ${name.slice(0, 80)} is not its shape's`);
  }
  return { dtype, shape, start, end };
}
