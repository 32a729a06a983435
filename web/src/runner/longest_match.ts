/**
 * RWKV's tokenizer, as `longest_match.py`: of the tokens that begin the rest of the text, the longest.
 *
 * The folder holds the vocabulary as numbers with their bytes in hexadecimal, because the published
 * file writes them as Python does.
 */

import { inputError } from "../errors";
import type { Codec } from "./text_stream";

const MOST_TOKENS = 1 << 20;
const HEXADECIMAL = /^(?:[0-9a-f]{2}){1,8192}$/;
const SURROGATE = /\p{Surrogate}/u;
const PIECE = 4096;

/** A character for each byte, so that pieces of a text are keys of a map. */
function charactersOf(bytes: Uint8Array): string {
  let text = "";
  for (let start = 0; start < bytes.length; start += PIECE) {
    text += String.fromCharCode(...bytes.subarray(start, start + PIECE));
  }
  return text;
}

export class LongestMatch implements Codec {
  private readonly tokens = new Map<number, Uint8Array>();
  private readonly ids = new Map<string, number>();
  /** Lengths of the tokens that begin with a byte, longest first. */
  private readonly lengths: readonly number[][];

  /** `data` is the file's JSON, `{"longest_match": [[number, bytes], ...]}`. */
  constructor(data: unknown) {
    const entries = (data as { longest_match?: unknown } | null)?.longest_match;
    if (!Array.isArray(entries) || entries.length > MOST_TOKENS) {
      throw inputError('expected a JSON object with the tokens in "longest_match"');
    }
    const lengths = Array.from({ length: 256 }, () => new Set<number>());
    for (const entry of entries as readonly unknown[]) {
      const [id, hexadecimal] = Array.isArray(entry) ? (entry as unknown[]) : [];
      if (typeof id !== "number" || !Number.isInteger(id) || id < 0 || typeof hexadecimal !== "string" || !HEXADECIMAL.test(hexadecimal)) {
        throw inputError(`${JSON.stringify(entry).slice(0, 60)} is no token: expected a number and its bytes`);
      }
      const bytes = Uint8Array.from(hexadecimal.match(/../g) ?? [], (pair) => parseInt(pair, 16));
      const key = charactersOf(bytes);
      if (this.tokens.has(id) || this.ids.has(key)) {
        throw inputError(`the number or the bytes of token ${id} came before`);
      }
      this.tokens.set(id, bytes);
      this.ids.set(key, id);
      lengths[bytes[0] ?? 0]?.add(bytes.length);
    }
    this.lengths = lengths.map((each) => [...each].sort((one, other) => other - one));
    for (let byte = 0; byte < 256; byte += 1) {
      if (!this.ids.has(String.fromCharCode(byte))) {
        throw inputError(`no token is the byte ${byte}: expected all 256`);
      }
    }
  }

  /** Token ids of a prompt; no token begins a text. */
  encode(text: string): number[] {
    const half = SURROGATE.exec(text);
    if (half !== null) {
      throw inputError(`the prompt is not text: character ${half.index} is half of a surrogate pair`);
    }
    const characters = charactersOf(new TextEncoder().encode(text));
    const found: number[] = [];
    for (let at = 0; at < characters.length; ) {
      for (const length of this.lengths[characters.charCodeAt(at)] ?? []) {
        const id = this.ids.get(characters.slice(at, at + length));
        // A shorter rest is the key of a shorter token, which has its turn.
        if (id !== undefined && at + length <= characters.length) {
          found.push(id);
          at += length;
          break;
        }
      }
    }
    return found;
  }

  /** Text of tokens; the end token and padding of the vocabulary have none. */
  decode(ids: readonly number[]): string {
    const pieces = ids.map((id) => this.tokens.get(id) ?? new Uint8Array());
    const bytes = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
    let at = 0;
    for (const piece of pieces) {
      bytes.set(piece, at);
      at += piece.length;
    }
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);
  }
}
