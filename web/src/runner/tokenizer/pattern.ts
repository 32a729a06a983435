/**
 * The patterns of tokenizers (Oniguruma's dialect) as JavaScript's regular expressions.
 *
 * As `tokenizer_pattern.py`: `\s` and `\w` mean other characters there than here, so classes are
 * written out; what would mean something else is refused by name rather than guessed.
 */

import { inputError, messageOf, type TapmlError } from "../../errors";

const LONGEST = 8192;
const LAST = 0x10ffff;
/** The Unicode property White_Space; JavaScript's own `\s` differs by two characters. */
const SPACE = String.raw`\u{9}-\u{d}\u{20}\u{85}\u{a0}\u{1680}\u{2000}-\u{200a}\u{2028}\u{2029}\u{202f}\u{205f}\u{3000}`;
/** Words in Unicode: alphabetic, marks, decimal digits, connectors. */
const WORD = String.raw`\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\u{24b6}-\u{24e9}\u{1f130}-\u{1f149}\u{1f150}-\u{1f169}\u{1f170}-\u{1f189}`;
/** Oniguruma takes these Latin-1 numbers for letters of words; Unicode does not. */
const LATIN_NUMBERS = String.raw`\u{b2}\u{b3}\u{b9}\u{bc}-\u{be}`;
/** Part of a word for the library that looks for added tokens, if not for the patterns. */
const JOINERS = String.raw`\u{200c}\u{200d}`;
/** What beside the letter itself folds to it. */
const FOLDED: Readonly<Record<string, string>> = { s: "\u017f", k: "\u212a" };
/** Pairs of letters that one character folds to: Oniguruma matches it. */
const FOLDED_PAIRS = /ss|ff|fi|fl|st/;
const CONTROLS: Readonly<Record<string, number>> = {
  n: 0x0a, r: 0x0d, t: 0x09, f: 0x0c, v: 0x0b, a: 0x07, e: 0x1b,
};
const CLASSES: Readonly<Record<string, string>> = {
  s: SPACE,
  d: String.raw`\p{Nd}`,
  w: WORD + LATIN_NUMBERS,
};
const GROUPS = ["(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"] as const;
const PROPERTY = /^([pP])\{(\^?)([A-Z][a-z]?)\}/;
const CODE_POINT = /^(?:x\{([0-9A-Fa-f]{1,6})\}|x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4}))/;
const REPEAT = /^\{(?:(\d{1,4})(,\d{0,4})?|,(\d{1,4}))\}/;

export const whiteSpace = (flags: string): RegExp => new RegExp(`^[${SPACE}]+`, `${flags}v`);
export const trailingSpace = (): RegExp => new RegExp(`[${SPACE}]+$`, "v");
export const isSpace = new RegExp(`^[${SPACE}]$`, "v");
export const isWord = new RegExp(`^[${WORD}${JOINERS}]$`, "v");
export const digits = (): RegExp => new RegExp(String.raw`\p{N}`, "gv");

const hex = (code: number): string => `\\u{${code.toString(16)}}`;

/** A text as a pattern that matches it and nothing else. */
export const literal = (text: string): string =>
  Array.from(text, (character) => hex(character.codePointAt(0) ?? 0)).join("");

/** Translate a pattern; raises an InputError that names what has no equal here. */
export function compilePattern(pattern: string): RegExp {
  if (pattern.length > LONGEST) {
    throw inputError(`a pattern of ${pattern.length} characters: expected at most ${LONGEST}`);
  }
  try {
    return new RegExp(new Translator(pattern).translate(), "gv");
  } catch (error) {
    if (error instanceof SyntaxError || error instanceof RangeError) {
      const shown = pattern.slice(0, 200);
      throw inputError(`the pattern '${shown}' is not understood (${messageOf(error)})`);
    }
    throw error;
  }
}

/** One character class: what stands between its brackets. */
interface Members {
  readonly text: string;
  /** The code point, where it is a single one. */
  readonly single?: number;
}

class Translator {
  private position = 0;
  private groups = 0;
  private insensitive = false;
  private behind = false;

  constructor(private readonly pattern: string) {}

  translate(): string {
    const text = this.alternatives();
    if (this.position < this.pattern.length) {
      throw this.refused("a parenthesis that closes nothing");
    }
    return text;
  }

  private get rest(): string {
    return this.pattern.slice(this.position);
  }

  private alternatives(): string {
    let text = "";
    while (this.position < this.pattern.length && !this.rest.startsWith(")")) {
      if (this.rest.startsWith("|")) {
        this.position += 1;
        text += "|";
      } else {
        text += this.repeated(this.item());
      }
    }
    return text;
  }

  /** An item with what repeats it; a possessive one gives nothing back. */
  private repeated(item: string): string {
    const found = REPEAT.exec(this.rest);
    const sign = found?.[0] ?? /^[*+?]/.exec(this.rest)?.[0];
    if (sign === undefined) {
      return item;
    }
    this.position += sign.length;
    const text = item + (found?.[3] === undefined ? sign : `{0,${found[3]}}`);
    const mode = /^[+?]/.exec(this.rest)?.[0];
    if (mode === undefined) {
      return text;
    }
    if (found !== null) {
      throw this.refused(`${sign}${mode}`);
    }
    this.position += 1;
    return mode === "?" ? `${text}?` : this.atomic(text);
  }

  /** What is matched once is not tried otherwise: a look ahead keeps its first way. */
  private atomic(text: string): string {
    if (this.behind) {
      throw this.refused("a possessive repetition that looks behind");
    }
    this.groups += 1;
    const name = `g${this.groups}`;
    return `(?:(?=(?<${name}>${text}))\\k<${name}>)`;
  }

  private item(): string {
    const character = String.fromCodePoint(this.pattern.codePointAt(this.position) ?? 0);
    switch (character) {
      case "(":
        return this.group();
      case "[":
        return this.class();
      case "\\":
        return `[${this.escape().text}]`;
      case "{":
        throw this.refused("a brace that repeats nothing");
      case "^":
      case "$":
        throw this.refused(`the anchor ${character}`);
      case "*":
      case "+":
      case "?":
        throw this.refused(`${character}, which repeats nothing,`);
      case ".":
        this.position += 1;
        return String.raw`[^\u{a}]`;
      default:
        this.position += character.length;
        return this.letter(character);
    }
  }

  private letter(character: string): string {
    if (!this.insensitive || !/\p{L}/u.test(character)) {
      return literal(character);
    }
    const lower = character.toLowerCase();
    return `[${literal(lower)}${literal(lower.toUpperCase())}${literal(FOLDED[lower] ?? "")}]`;
  }

  private group(): string {
    const opening = GROUPS.find((each) => this.rest.startsWith(each)) ?? "(";
    if (opening === "(" && this.rest.startsWith("(?")) {
      throw this.refused(`the group ${this.rest.slice(0, 4)}`);
    }
    this.position += opening.length;
    const start = this.position;
    const before = { insensitive: this.insensitive, behind: this.behind };
    this.insensitive ||= opening === "(?i:";
    this.behind ||= opening === "(?<=" || opening === "(?<!";
    const inside = this.alternatives();
    if (!this.rest.startsWith(")")) {
      throw this.refused("a group that does not end");
    }
    if (opening === "(?i:" && !before.insensitive) {
      const text = this.pattern.slice(start, this.position).toLowerCase();
      if (!/^[\0-\x7f]*$/.test(text) || FOLDED_PAIRS.test(text)) {
        throw this.refused(`(?i:${text}), whose letters fold to one`);
      }
    }
    this.position += 1;
    ({ insensitive: this.insensitive, behind: this.behind } = before);
    if (opening === "(?>") {
      return this.atomic(inside);
    }
    // Nothing refers to a group, so none has to be captured; letters are written out both ways.
    return `${opening === "(" || opening === "(?i:" ? "(?:" : opening}${inside})`;
  }

  /** What stands after a backslash; the position moves behind it. */
  private escape(): Members {
    this.position += 1;
    const letter = Array.from(this.rest.slice(0, 2))[0] ?? "";
    const property = PROPERTY.exec(this.rest);
    if (property !== null) {
      this.forbidInsensitive(`\\${property[0]}`);
      this.position += property[0].length;
      const negated = (property[1] === "P") !== (property[2] === "^");
      return { text: `\\${negated ? "P" : "p"}{${property[3]}}` };
    }
    const named = CLASSES[letter.toLowerCase()];
    if (named !== undefined) {
      this.forbidInsensitive(`\\${letter}`);
      this.position += 1;
      return { text: letter === letter.toLowerCase() ? named : `[^${named}]` };
    }
    const code = CODE_POINT.exec(this.rest);
    if (code !== null) {
      this.position += code[0].length;
      return this.single(parseInt(code[1] ?? code[2] ?? code[3] ?? "", 16));
    }
    const control = CONTROLS[letter];
    if (control === undefined && (letter === "" || /[\p{L}\p{N}]/u.test(letter))) {
      throw this.refused(`\\${this.rest.slice(0, 12)}`);
    }
    this.position += letter.length;
    return this.single(control ?? letter.codePointAt(0) ?? 0);
  }

  private single(code: number): Members {
    if (code > LAST) {
      throw this.refused(`the code point ${code.toString(16)}`);
    }
    return { text: hex(code), single: code };
  }

  private class(): string {
    this.forbidInsensitive("a class");
    this.position += 1;
    const negated = this.rest.startsWith("^");
    this.position += negated ? 1 : 0;
    let inside = "";
    while (!this.rest.startsWith("]")) {
      inside += this.member();
    }
    if (inside === "") {
      throw this.refused("an empty class");
    }
    this.position += 1;
    return `[${negated ? "^" : ""}${inside}]`;
  }

  private member(): string {
    const first = this.classItem();
    if (!/^-[^\]]/s.test(this.rest)) {
      return first.text;
    }
    this.position += 1;
    const last = this.classItem();
    if (first.single === undefined || last.single === undefined) {
      throw this.refused("a range between classes");
    }
    if (last.single < first.single) {
      throw this.refused("a range that runs backwards");
    }
    return `${first.text}-${last.text}`;
  }

  private classItem(): Members {
    const code = this.pattern.codePointAt(this.position);
    if (code === undefined) {
      throw this.refused("a class that does not end");
    }
    if (this.rest.startsWith("[") || this.rest.startsWith("&&")) {
      throw this.refused(`${this.rest.slice(0, 2)} in a class`);
    }
    if (this.rest.startsWith("\\")) {
      return this.escape();
    }
    this.position += String.fromCodePoint(code).length;
    return this.single(code);
  }

  private forbidInsensitive(what: string): void {
    if (this.insensitive) {
      throw this.refused(`${what} that ignores case`);
    }
  }

  private refused(what: string): TapmlError {
    return inputError(
      `the pattern '${this.pattern.slice(0, 200)}' holds ${what}, which is not supported`,
    );
  }
}
