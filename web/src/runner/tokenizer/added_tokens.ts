/** Added tokens: looked for in the text before anything else is done to it; as `tokenizer_added.py`. */

import { inputError } from "../../errors";
import { isFields, shown } from "./fields";
import { isSpace, isWord, literal, whiteSpace } from "./pattern";
import type { Normalizer, Piece } from "./steps";

export interface AddedToken {
  readonly id: number;
  readonly content: string;
  /** What is looked for: the content, normalized where `normalized` says so. */
  readonly text: string;
  readonly singleWord: boolean;
  readonly lstrip: boolean;
  readonly rstrip: boolean;
  readonly normalized: boolean;
  readonly special: boolean;
}

/** Check the entries; the id of each must be the one that the library would give it. */
export function readAddedTokens(
  data: readonly unknown[],
  vocabulary: ReadonlyMap<string, number>,
  normalize: Normalizer,
): readonly AddedToken[] {
  const tokens = new Map<number, AddedToken>();
  const known = new Map<string, number>();
  let following = vocabulary.size;
  for (const entry of data) {
    const token = entryOf(entry, normalize);
    if (token.content === "") {
      continue;
    }
    const number = known.get(token.content) ?? vocabulary.get(token.content) ?? following;
    if (number !== token.id) {
      throw inputError(
        `the added token ${shown(token.content)} has id ${token.id}, not ${number}`,
      );
    }
    const replaced = tokens.get(number);
    if (replaced !== undefined) {
      known.delete(replaced.content);
    }
    tokens.set(number, token);
    known.set(token.content, number);
    following = Math.max(following, number + 1);
  }
  return [...tokens.values()];
}

function entryOf(entry: unknown, normalize: Normalizer): AddedToken {
  const wrong = inputError(`an added token makes no sense: ${shown(entry)}`);
  if (!isFields(entry)) {
    throw wrong;
  }
  const { id, content } = entry as { id?: unknown; content?: unknown };
  const flags = ["single_word", "lstrip", "rstrip", "normalized", "special"].map((name) => {
    const value = entry[name];
    if (typeof value !== "boolean") {
      throw wrong;
    }
    return value;
  });
  if (typeof id !== "number" || !Number.isInteger(id) || typeof content !== "string") {
    throw wrong;
  }
  const [singleWord = false, lstrip = false, rstrip = false, normalized = false, special = false] =
    flags;
  const text = normalized ? normalize(content) : content;
  return { id, content, text, singleWord, lstrip, rstrip, normalized, special };
}

/** Finds added tokens in a text, the longest of those that begin first. */
export class AddedTokens {
  private readonly byText: ReadonlyMap<string, AddedToken>;
  private readonly pattern: RegExp;

  constructor(tokens: readonly AddedToken[]) {
    this.byText = new Map(
      tokens.filter(({ text }) => text !== "").map((token) => [token.text, token]),
    );
    const length = (text: string): number => Array.from(text).length;
    const longestFirst = [...this.byText.keys()].sort((a, b) => length(b) - length(a));
    this.pattern = new RegExp(longestFirst.map(literal).join("|") || "(?!)", "gv");
  }

  /** The piece in parts: ids of the tokens in it, and what lies between them. */
  split({ text, first }: Piece): readonly (Piece | number)[] {
    const parts: (Piece | number)[] = [];
    let end = 0;
    for (const match of text.matchAll(this.pattern)) {
      const token = this.byText.get(match[0]);
      let start = match.index;
      let stop = start + match[0].length;
      if (token === undefined || (token.singleWord && insideWord(text, start, stop))) {
        continue;
      }
      // No white space lies beyond the first plane: a unit is a character.
      while (token.lstrip && start > end && isSpace.test(text.charAt(start - 1))) {
        start -= 1;
      }
      if (token.rstrip) {
        stop += whiteSpace("").exec(text.slice(stop))?.[0].length ?? 0;
      }
      if (start > end) {
        parts.push({ text: text.slice(end, start), first: first && end === 0 });
      }
      parts.push(token.id);
      end = stop;
    }
    if (end < text.length) {
      parts.push({ text: text.slice(end), first: first && end === 0 });
    }
    return parts;
  }
}

function insideWord(text: string, start: number, stop: number): boolean {
  const before = Array.from(text.slice(Math.max(0, start - 2), start)).at(-1) ?? "";
  const behind = text.codePointAt(stop);
  return isWord.test(before) || (behind !== undefined && isWord.test(String.fromCodePoint(behind)));
}
