/**
 * What a tokenizer does before its model: normalize, and split into words; as `tokenizer_steps.py`.
 *
 * Each step of a `tokenizer.json` becomes a function. One that is not known is refused by name.
 */

import { inputError } from "../../errors";
import { characterOf } from "./byte_characters";
import { entries, flag, isFields, shown, textField, unsupported, type Fields } from "./fields";
import { compilePattern, digits, literal, trailingSpace, whiteSpace } from "./pattern";

/** A part of the text; `first` where it begins the text. */
export interface Piece {
  readonly text: string;
  readonly first: boolean;
}

export type Normalizer = (text: string) => string;
export type Splitter = (piece: Piece) => readonly Piece[];

const BEHAVIORS = [
  "Isolated",
  "Removed",
  "Contiguous",
  "MergedWithPrevious",
  "MergedWithNext",
] as const;
type Behavior = (typeof BEHAVIORS)[number];

/** GPT-2's words, as the library's ByteLevel step has them built in. */
const GPT2_PATTERN = String.raw`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`;

/** The normalizer that an entry describes; null leaves text as it is. */
export function normalizer(data: Fields | null): Normalizer {
  if (data === null) {
    return (text) => text;
  }
  switch (data["type"]) {
    case "NFC":
    case "NFD":
    case "NFKC":
    case "NFKD": {
      const form = textField(data, "type");
      return (text) => text.normalize(form);
    }
    case "Prepend": {
      const start = textField(data, "prepend");
      return (text) => (text === "" ? text : start + text);
    }
    case "Replace": {
      const pattern = patternOf(data);
      const content = textField(data, "content");
      return (text) => text.replace(pattern, () => content);
    }
    case "Strip": {
      const left = flag(data, "strip_left");
      const right = flag(data, "strip_right");
      return (text) => {
        const start = left ? text.replace(whiteSpace(""), "") : text;
        return right ? start.replace(trailingSpace(), "") : start;
      };
    }
    case "Sequence": {
      const steps = entries(data, "normalizers").map(normalizer);
      return (text) => steps.reduce((changed, step) => step(changed), text);
    }
  }
  throw unsupported("normalizer", data);
}

/** The pre-tokenizer that an entry describes; null leaves a piece whole. */
export function splitter(data: Fields | null): Splitter {
  if (data === null) {
    return (piece) => [piece];
  }
  switch (data["type"]) {
    case "ByteLevel":
      return byteLevel(data);
    case "Metaspace":
      return metaspace(data);
    case "Split": {
      const pattern = patternOf(data);
      const invert = flag(data, "invert");
      const behavior = BEHAVIORS.find((each) => each === data["behavior"]);
      if (behavior === undefined) {
        throw unsupported(`behavior ${shown(data["behavior"])} of the pre-tokenizer`, data);
      }
      return (piece) => split(piece, pattern, behavior, invert);
    }
    case "Digits": {
      const how: Behavior = flag(data, "individual_digits") ? "Isolated" : "Contiguous";
      return (piece) => split(piece, digits(), how, false);
    }
    case "Sequence": {
      const steps = entries(data, "pretokenizers").map(splitter);
      return (piece) =>
        steps.reduce<readonly Piece[]>(
          (pieces, step) => pieces.flatMap((each) => step(each).filter((part) => part.text !== "")),
          [piece],
        );
    }
  }
  throw unsupported("pre-tokenizer", data);
}

/** What a step looks for. */
export function patternOf(data: Fields): RegExp {
  const pattern = data["pattern"];
  if (isFields(pattern) && typeof pattern["String"] === "string") {
    return new RegExp(literal(pattern["String"]), "gv");
  }
  if (isFields(pattern) && typeof pattern["Regex"] === "string") {
    return compilePattern(pattern["Regex"]);
  }
  throw inputError(`a step of kind ${shown(data["type"])} has no pattern`);
}

/** The mark that stands for a space, and where one is put before a text. */
export function metaspaceSettings(data: Fields): readonly [string, string] {
  const mark = textField(data, "replacement");
  const scheme = data["add_prefix_space"] === false ? "never" : (data["prepend_scheme"] ?? "always");
  const known = ["always", "first", "never"].find((each) => each === scheme);
  if (Array.from(mark).length !== 1 || known === undefined) {
    throw unsupported("step", data);
  }
  return [mark, known];
}

function byteLevel(data: Fields): Splitter {
  const prefix = flag(data, "add_prefix_space", true);
  const words = flag(data, "use_regex", true) ? compilePattern(GPT2_PATTERN) : null;
  const encoder = new TextEncoder();
  return (piece) => {
    const start = prefix && !piece.text.startsWith(" ") ? " " : "";
    const whole = { text: start + piece.text, first: piece.first };
    const pieces = words === null ? [whole] : split(whole, words, "Isolated", false);
    return pieces.map(({ text, first }) => ({
      text: Array.from(encoder.encode(text), (byte) => characterOf[byte] ?? "").join(""),
      first,
    }));
  };
}

function metaspace(data: Fields): Splitter {
  const [mark, scheme] = metaspaceSettings(data);
  const words = flag(data, "split", true) ? new RegExp(literal(mark), "gv") : null;
  return ({ text, first }) => {
    const marked = text.replaceAll(" ", () => mark);
    const wanted = scheme === "always" || (scheme === "first" && first);
    const start = wanted && !marked.startsWith(mark) ? mark : "";
    const piece = { text: start + marked, first };
    return words === null ? [piece] : split(piece, words, "MergedWithNext", false);
  };
}

type Part = readonly [start: number, end: number, matched: boolean];

/** Cut at every match; what becomes of the matches is the behavior. */
function split(
  { text, first }: Piece,
  pattern: RegExp,
  behavior: Behavior,
  invert: boolean,
): readonly Piece[] {
  const parts: Part[] = [];
  let end = 0;
  for (const match of text.matchAll(pattern)) {
    const start = match.index;
    const stop = start + match[0].length;
    // No empty match right behind another: Oniguruma goes on a character further.
    if (stop === start && start === end && parts.length > 0) {
      continue;
    }
    if (start > end) {
      parts.push([end, start, invert]);
    }
    parts.push([start, stop, !invert]);
    end = stop;
  }
  if (end < text.length) {
    parts.push([end, text.length, invert]);
  }
  return arranged(parts, behavior).map(([start, stop]) => ({
    text: text.slice(start, stop),
    first: first && start === 0,
  }));
}

function arranged(parts: readonly Part[], behavior: Behavior): (readonly [number, number])[] {
  if (behavior === "Isolated") {
    return parts.map(([start, end]) => [start, end]);
  }
  if (behavior === "Removed") {
    return parts.filter(([, , matched]) => !matched).map(([start, end]) => [start, end]);
  }
  const backwards = behavior === "MergedWithNext";
  const spans: (readonly [number, number])[] = [];
  let before = false;
  for (const [start, end, matched] of backwards ? [...parts].reverse() : parts) {
    const joins = behavior === "Contiguous" ? matched === before : matched && !before;
    const last = spans.at(-1);
    if (joins && last !== undefined) {
      spans[spans.length - 1] = backwards ? [start, last[1]] : [last[0], end];
    } else {
      spans.push([start, end]);
    }
    before = matched;
  }
  return backwards ? spans.reverse() : spans;
}
