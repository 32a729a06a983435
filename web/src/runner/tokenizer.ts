/**
 * A tokenizer from its `tokenizer.json`, read by `@huggingface/tokenizers`.
 *
 * That library reimplements the one that `tapml run` uses. Where the two are known to differ, the file
 * is rewritten to steps on which they agree. For unknown differences the folder holds lines with their
 * tokens, which must be reproduced before text is accepted.
 */

import { ByteFallbackDecoder, SequenceDecoder, Tokenizer as Library } from "@huggingface/tokenizers";

import { inputError } from "../errors";
import type { Codec } from "./text_stream";

const MOST_LINES = 4096;
const WORD = String.raw`[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]`;
const WORD_AT_START = new RegExp(`^${WORD}`, "u");
const WORD_AT_END = new RegExp(`${WORD}$`, "u");
/** The characters that stand for bytes in the step ByteLevel. */
const BYTE_LEVEL_CHARACTERS = /^[!-~\u00a1-\u00ac\u00ae-\u0143]+$/;
const SURROGATE = /\p{Surrogate}/u;
/** The words of the step ByteLevel, which the library matches with JavaScript's white space. */
const BYTE_LEVEL_WORDS = String.raw`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`;

type Fields = Readonly<Record<string, unknown>>;

const isFields = (value: unknown): value is Fields =>
  typeof value === "object" && value !== null && !Array.isArray(value);

export class Tokenizer implements Codec {
  private readonly library: Library;

  /** `data` is the file's JSON; raises an error that names unsupported parts. */
  constructor(data: unknown) {
    if (!isFields(data)) {
      throw inputError("expected a JSON object");
    }
    const rewritten = {
      ...data,
      normalizer: normalizerOf(data["normalizer"]),
      pre_tokenizer: preTokenizerOf(data["pre_tokenizer"]),
    };
    this.library = new Library(rewritten, {});
    this.matchAddedTokens();
    const { decoder } = this.library;
    for (const step of decoder instanceof SequenceDecoder ? decoder.decoders : [decoder]) {
      if (step instanceof ByteFallbackDecoder) {
        step.text_decoder = new BytesDecoder("utf-8", { fatal: true, ignoreBOM: true });
      }
    }
  }

  /** Added tokens as `tapml run` has them: normalized where the file says so, and only as complete words. */
  private matchAddedTokens(): void {
    const { library } = this;
    const { model, normalizer } = library;
    const [contents, words] = [new Set<string>(), new Set<string>()];
    for (const token of library.get_added_tokens_decoder().values()) {
      const normalized = token.normalized && !token.special && normalizer !== null;
      const content = normalized ? normalizer(token.content) : token.content;
      if (model !== null) {
        model.vocab[token.id] = content;
      }
      contents.add(content);
      if (token.single_word) {
        words.add(content);
      }
    }
    if (library.decoder !== null) {
      // A token whose characters all stand for bytes is decoded as bytes there.
      const added = [...library.get_added_tokens_decoder().values()];
      library.decoder.added_tokens = added.filter((each) => !BYTE_LEVEL_CHARACTERS.test(each.content));
    }
    if (words.size > 0) {
      for (const name of ["splitter_unnormalized", "splitter_normalized"] as const) {
        matchWords(library[name] as Splitter, contents, words);
      }
    }
  }

  /** Token ids of a prompt, with the begin token if the model has one. */
  encode(text: string): number[] {
    const half = SURROGATE.exec(text);
    if (half !== null) {
      throw inputError(`the prompt is not text: character ${half.index} is half of a surrogate pair`);
    }
    return this.library.encode(text).ids;
  }

  /** Text of tokens; begin, end and other special tokens are left out. */
  decode(ids: readonly number[]): string {
    const known = ids.filter((id) => this.library.id_to_token(id) !== undefined);
    const options = { skip_special_tokens: true, clean_up_tokenization_spaces: false };
    return known.length === 0 ? "" : this.library.decode(known, options);
  }
}

/** Each byte of invalid text becomes a replacement character, as in `tapml run`. */
class BytesDecoder extends TextDecoder {
  override decode(bytes: Uint8Array): string {
    try {
      return super.decode(bytes);
    } catch {
      return "\ufffd".repeat(bytes.length);
    }
  }
}

interface Splitter {
  split(text: string): string[];
}

/** Leave an added token of `words` in the text around it where a letter or digit adjoins it. */
function matchWords(splitter: Splitter, contents: ReadonlySet<string>, words: ReadonlySet<string>): void {
  const split = splitter.split.bind(splitter);
  splitter.split = (text) => {
    const pieces: string[] = [];
    let [start, joins] = [0, false];
    for (const piece of split(text)) {
      const end = start + piece.length;
      // A character has two units at most.
      const adjoined = WORD_AT_END.test(text.slice(Math.max(0, start - 2), start)) || WORD_AT_START.test(text.slice(end, end + 2));
      const isText = !contents.has(piece) || (words.has(piece) && adjoined);
      pieces.push(isText && joins ? `${pieces.pop() ?? ""}${piece}` : piece);
      [start, joins] = [end, isText];
    }
    return pieces;
  };
}

const isolated = (pattern: string): Fields => ({
  type: "Split",
  pattern: { Regex: pattern },
  behavior: "Isolated",
  invert: false,
});

/** Strip Unicode's white space instead of JavaScript's. */
function normalizerOf(step: unknown): unknown {
  if (!isFields(step)) {
    return step;
  }
  const steps = step["normalizers"];
  if (step["type"] === "Sequence" && Array.isArray(steps)) {
    return { ...step, normalizers: steps.map(normalizerOf) };
  }
  if (step["type"] === "Strip") {
    const strip = (end: string): Fields => ({ type: "Replace", pattern: { Regex: end }, content: "" });
    const left = step["strip_left"] === false ? [] : [strip(String.raw`\A\p{White_Space}+`)];
    const right = step["strip_right"] === false ? [] : [strip(String.raw`\p{White_Space}+\z`)];
    return { type: "Sequence", normalizers: [...left, ...right] };
  }
  return step;
}

/**
 * A step Split whose pieces are those of `tapml run`; the library has the behaviours Isolated and Removed.
 *
 * A match merged with its neighbour is a longer match. Where the step is inverted, what lies between
 * matches is merged: before them instead of behind, and the other way round.
 */
function splitOf(step: Fields): Fields {
  const { pattern, behavior, invert } = step;
  if (!isFields(pattern)) {
    return step;
  }
  const literal = String(pattern["String"]).replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const match = `(?:${typeof pattern["Regex"] === "string" ? pattern["Regex"] : literal})`;
  if (behavior === "Removed") {
    return { ...step, pattern: { Regex: match } };
  }
  const gap = String.raw`(?:(?!${match})[\s\S])*`;
  const behind = behavior === (invert === true ? "MergedWithNext" : "MergedWithPrevious");
  return isolated(
    behavior === "Contiguous" ? `${match}+`
    : behavior === "Isolated" ? match
    : behind ? `${gap}${match}`
    : `${match}${gap}`,
  );
}

/** Use Unicode's character classes instead of JavaScript's `\d` and `\s`. */
function preTokenizerOf(step: unknown): unknown {
  if (!isFields(step)) {
    return step;
  }
  const steps = step["pretokenizers"];
  if (step["type"] === "Sequence" && Array.isArray(steps)) {
    return { ...step, pretokenizers: steps.map(preTokenizerOf) };
  }
  if (step["type"] === "Split") {
    return splitOf(step);
  }
  if (step["type"] === "Digits") {
    return isolated(step["individual_digits"] === true ? String.raw`\p{N}` : String.raw`\p{N}+`);
  }
  if (step["type"] === "ByteLevel" && step["use_regex"] !== false) {
    const space = { type: "Replace", pattern: { Regex: String.raw`\A[^ ]` }, content: " $&" };
    const bytes = { ...step, add_prefix_space: false, use_regex: false };
    const prefix = step["add_prefix_space"] === false ? [] : [space];
    return { type: "Sequence", pretokenizers: [...prefix, isolated(BYTE_LEVEL_WORDS), bytes] };
  }
  return step;
}

/** Raise an InputError with the first line whose tokens or text differ here. */
export function compareLines(tokenizer: Codec, lines: unknown): void {
  if (!Array.isArray(lines) || lines.length > MOST_LINES) {
    throw inputError("the lines to compare it on are invalid");
  }
  for (const entry of lines as readonly unknown[]) {
    const [line, ids, text] = Array.isArray(entry) ? (entry as unknown[]) : [];
    if (typeof line !== "string" || !Array.isArray(ids) || typeof text !== "string") {
      throw inputError("the lines to compare it on are invalid");
    }
    const found = tokenizer.encode(line);
    if (found.join() !== ids.join() || tokenizer.decode(found) !== text) {
      throw inputError(
        `this browser reads ${JSON.stringify(line.slice(0, 60))} as other tokens than the model's ` +
          "own tokenizer: run the model with `tapml run`",
      );
    }
  }
}
