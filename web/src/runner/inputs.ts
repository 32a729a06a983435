/** Inputs of an entry, as in `inputs.py`: tokens, positions, cache rows, attention mask. */

import { inputError, TapmlError } from "../errors";
import type { ModelSizes } from "./manifest";

/** Large enough to vanish in the softmax, small enough to stay finite when a score is added. */
const MASKED = { float32: -1e9, float16: 0xf753 } as const; // -30000 in half precision

export interface Input {
  readonly dtype: string;
  readonly shape: readonly bigint[];
  readonly bytes: Uint8Array<ArrayBuffer>;
}

/** Inputs by name of a run that stores `tokens` in the cache rows from `start` on. */
export function entryInputs(
  model: ModelSizes,
  tokens: readonly number[],
  start: number,
): ReadonlyMap<string, Input> {
  const { contextLength, dtype } = model;
  const length = tokens.length;
  checkTokens(model, tokens);
  if (length === 0 || start + length > contextLength) {
    throw inputError(
      `${length} tokens from position ${start} on need a context of ${start + length}, but this ` +
        `model has ${contextLength}`,
    );
  }
  const positions = Int32Array.from(tokens, (_, index) => start + index);
  const rows = new Int32Array(contextLength).fill(-1);
  for (let index = 0; index < length; index += 1) {
    rows[start + index] = index;
  }
  const mask =
    dtype === "float32" ? new Float32Array(length * contextLength) : new Uint16Array(length * contextLength);
  for (let index = 0; index < length; index += 1) {
    mask.fill(MASKED[dtype], index * contextLength + start + index + 1, (index + 1) * contextLength);
  }
  const S = BigInt(length);
  const T = BigInt(contextLength);
  return new Map<string, Input>([
    ["token_ids", { dtype: "int32", shape: [1n, S], bytes: bytesOf(Int32Array.from(tokens)) }],
    ["position_ids", { dtype: "int32", shape: [1n, S], bytes: bytesOf(positions) }],
    ["cache_rows", { dtype: "int32", shape: [T], bytes: bytesOf(rows) }],
    ["attention_mask", { dtype, shape: [1n, 1n, S, T], bytes: bytesOf(mask) }],
  ]);
}

/** Raise an InputError if a token is not in the vocabulary. */
export function checkTokens(model: ModelSizes, tokens: readonly number[]): void {
  for (const token of tokens) {
    if (!Number.isInteger(token) || token < 0 || token >= model.vocabulary) {
      throw inputError(
        `token ${token} is not in the vocabulary of ${model.name}: expected 0 to ` +
          `${model.vocabulary - 1}`,
      );
    }
  }
}

/** Raise an InputError unless prompt and new tokens fit into the model's context. */
export function checkLengths(model: ModelSizes, prompt: number, newTokens: number): void {
  if (prompt === 0) {
    throw inputError("the prompt has no token: give a prompt that is not empty");
  }
  if (!Number.isInteger(newTokens) || newTokens < 1) {
    throw inputError(`new tokens: expected at least 1, got ${newTokens}`);
  }
  // The last generated token is never fed back and needs no cache row.
  const needed = prompt + newTokens - 1;
  if (needed > model.contextLength) {
    throw inputError(
      `a prompt of ${prompt} tokens and ${newTokens} new ones need a context of ${needed}, but ` +
        `${model.name} has ${model.contextLength}: shorten the prompt or ask for fewer tokens`,
    );
  }
}

/** The index of the largest logit, the first of equal ones; a NaN counts as the largest. */
export function argmax(logits: Uint8Array<ArrayBuffer>, dtype: string): number {
  const values =
    dtype === "float32"
      ? new Float32Array(logits.buffer, logits.byteOffset, logits.byteLength / 4)
      : halves(new Uint16Array(logits.buffer, logits.byteOffset, logits.byteLength / 2));
  if (values.length === 0) {
    throw new TapmlError("RemoteError", "the model gave no logits");
  }
  let best = 0;
  let most = values[0] ?? 0;
  for (let index = 1; index < values.length && !Number.isNaN(most); index += 1) {
    const value = values[index] ?? 0;
    if (value > most || Number.isNaN(value)) {
      most = value;
      best = index;
    }
  }
  return best;
}

/** Half precision numbers as integers of the same order, or NaN. */
function halves(bits: Uint16Array): Float64Array {
  return Float64Array.from(bits, (each) => {
    const magnitude = each & 0x7fff;
    if (magnitude > 0x7c00) {
      return NaN;
    }
    return each & 0x8000 ? -magnitude : magnitude;
  });
}

const bytesOf = (values: Int32Array | Float32Array | Uint16Array): Uint8Array<ArrayBuffer> =>
  new Uint8Array(values.buffer as ArrayBuffer, values.byteOffset, values.byteLength);
