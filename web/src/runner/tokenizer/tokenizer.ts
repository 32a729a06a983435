/**
 * A tokenizer from its `tokenizer.json`: byte pair encodings, byte level (GPT-2, Llama 3, Qwen) and
 * SentencePiece's with byte fallback (Llama 2, Mistral); as `tokenizer_json.py`.
 *
 * What it does not support it refuses by name. Whether it agrees with the model's own is looked at
 * on the lines that the folder brings with it, before it is used.
 */

import { inputError, type TapmlError } from "../../errors";
import { AddedTokens, readAddedTokens } from "./added_tokens";
import { BytePairs, MAX_TOKENS, type Settings } from "./byte_pairs";
import { decoder, type Decoder } from "./decoder";
import { isFields, optional, shown, type Fields } from "./fields";
import { normalizer, splitter, type Normalizer, type Piece, type Splitter } from "./steps";

/** Settings of the model that change what it does and have no counterpart here. */
const UNSUPPORTED = ["dropout", "continuing_subword_prefix", "end_of_word_suffix"];
const SURROGATE = /\p{Surrogate}/u;

type Sides = readonly [before: readonly number[], after: readonly number[]];

export class Tokenizer {
  private readonly normalize: Normalizer;
  private readonly split: Splitter;
  private readonly join: Decoder;
  private readonly model: BytePairs;
  private readonly verbatim: AddedTokens;
  private readonly normalized: AddedTokens;
  private readonly sides: Sides;
  private readonly tokens: ReadonlyMap<number, string>;
  private readonly special: ReadonlySet<number>;

  /** `data` is what the file holds; raises an InputError that names what is not supported. */
  constructor(data: unknown) {
    if (!isFields(data)) {
      throw inputError("expected a JSON object");
    }
    this.normalize = normalizer(optional(data, "normalizer"));
    this.split = splitter(optional(data, "pre_tokenizer"));
    this.join = decoder(optional(data, "decoder"));
    const settings = settingsOf(optional(data, "model") ?? {});
    this.model = new BytePairs(settings);
    const added = data["added_tokens"] ?? [];
    if (!Array.isArray(added)) {
      throw inputError("added_tokens are no list");
    }
    const read = readAddedTokens(added, settings.vocabulary, this.normalize);
    this.verbatim = new AddedTokens(read.filter((token) => !token.normalized));
    this.normalized = new AddedTokens(read.filter((token) => token.normalized));
    this.sides = templateOf(optional(data, "post_processor"));
    const special = new Set(read.filter((token) => token.special).map((token) => token.content));
    this.tokens = new Map([
      ...[...settings.vocabulary].map(([text, number]) => [number, text] as const),
      ...read.map(({ id, text }) => [id, text] as const),
    ]);
    this.special = new Set(
      [...this.tokens].filter(([, text]) => special.has(text)).map(([number]) => number),
    );
  }

  /** Token ids of a prompt, with the begin token where the model has one. */
  encode(text: string): number[] {
    const half = SURROGATE.exec(text);
    if (half !== null) {
      throw inputError(`the prompt is no text: character ${half.index} is half of a surrogate pair`);
    }
    const [before, after] = this.sides;
    const parts = this.verbatim.split({ text, first: true });
    const ids = parts.map((part) => (typeof part === "number" ? [part] : this.between(part)));
    return [...before, ...ids.flat(), ...after];
  }

  /** Text of tokens; begin, end and other special tokens are left out. */
  decode(ids: readonly number[]): string {
    const shownTokens = ids.flatMap((id) => (this.special.has(id) ? [] : (this.tokens.get(id) ?? [])));
    return this.join(shownTokens).join("");
  }

  private between({ text, first }: Piece): number[] {
    const parts = this.normalized.split({ text: this.normalize(text), first });
    return parts.flatMap((part) =>
      typeof part === "number"
        ? [part]
        : this.split(part).flatMap((word) => this.model.encode(word.text)),
    );
  }
}

function settingsOf(data: Fields): Settings {
  if (data["type"] !== "BPE") {
    throw inputError(`the model ${shown(data["type"])} is not supported, BPE is`);
  }
  const used = UNSUPPORTED.filter((name) => Boolean(data[name]));
  if (used.length > 0) {
    throw inputError(`the model's ${used.join(", ")} is not supported`);
  }
  const { vocab, merges } = data as { vocab?: unknown; merges?: unknown };
  const wrong = inputError("the model has no vocabulary or no merges");
  if (!isFields(vocab) || !Array.isArray(merges) || merges.length > MAX_TOKENS) {
    throw wrong;
  }
  const pairs = Object.entries(vocab);
  const vocabulary = new Map<string, number>();
  for (const [text, number] of pairs) {
    if (!isToken(number) || pairs.length > MAX_TOKENS) {
      throw wrong;
    }
    vocabulary.set(text, number);
  }
  const named = data["unk_token"] ?? null;
  const unknown = typeof named === "string" ? vocabulary.get(named) : undefined;
  if (named !== null && unknown === undefined) {
    throw inputError(`the unknown token ${shown(named)} is not in the vocabulary`);
  }
  return {
    vocabulary,
    merges: mergesOf(merges, vocabulary),
    unknown: unknown ?? null,
    fuseUnknown: data["fuse_unk"] === true,
    byteFallback: data["byte_fallback"] === true,
    ignoreMerges: data["ignore_merges"] === true,
  };
}

const isToken = (value: unknown): value is number =>
  typeof value === "number" && Number.isInteger(value) && value >= 0 && value < MAX_TOKENS;

function mergesOf(
  merges: readonly unknown[],
  vocabulary: ReadonlyMap<string, number>,
): Settings["merges"] {
  // The older form is a line per merge, which may begin with the version of its file.
  const lines = merges.filter((each) => typeof each !== "string" || !each.startsWith("#version"));
  return lines.map((entry, rank) => {
    const pair: unknown = typeof entry === "string" ? entry.split(" ") : entry;
    const [first, second] = Array.isArray(pair) && pair.length === 2 ? (pair as unknown[]) : [];
    if (typeof first === "string" && typeof second === "string") {
      const ids = [first, second, first + second].map((text) => vocabulary.get(text));
      const [a, b, merged] = ids;
      if (a !== undefined && b !== undefined && merged !== undefined) {
        return [a, b, merged] as const;
      }
    }
    throw inputError(`merge ${rank} makes no sense or is not in the vocabulary: ${shown(entry)}`);
  });
}

/** Tokens that are put before and after those of the text. */
function templateOf(data: Fields | null): Sides {
  const kind = data?.["type"];
  if (data === null || kind === "ByteLevel") {
    return [[], []];
  }
  if (kind === "Sequence") {
    const processors: unknown = data["processors"] ?? [];
    if (!Array.isArray(processors)) {
      throw notSupported(kind);
    }
    return processors.reduce<Sides>(
      ([before, after], each: unknown) => {
        const [first, last] = templateOf(isFields(each) ? each : { type: "?" });
        return [
          [...first, ...before],
          [...after, ...last],
        ];
      },
      [[], []],
    );
  }
  if (kind === "TemplateProcessing") {
    return piecesOf(data);
  }
  throw notSupported(kind);
}

const notSupported = (kind: unknown): TapmlError =>
  inputError(`the post-processor ${shown(kind)} is not supported`);

function piecesOf(data: Fields): Sides {
  const sides: number[][] = [[]];
  const special = data["special_tokens"];
  const single: unknown = data["single"] ?? [];
  for (const piece of Array.isArray(single) ? (single as unknown[]) : []) {
    const fields = isFields(piece) ? piece : {};
    const sequence = fields["Sequence"];
    const token = fields["SpecialToken"];
    const name = isFields(token) ? token["id"] : undefined;
    if (isFields(sequence) && sequence["id"] === "A") {
      sides.push([]);
    } else if (typeof name === "string" && isFields(special)) {
      const entry = special[name];
      const ids: unknown = isFields(entry) ? entry["ids"] : undefined;
      if (!Array.isArray(ids) || !ids.every(isToken)) {
        throw inputError(`the template's token ${shown(name)} has no ids`);
      }
      sides.at(-1)?.push(...ids);
    } else {
      throw inputError(`a piece of the template makes no sense: ${shown(piece)}`);
    }
  }
  const [before, after] = sides;
  if (before === undefined || after === undefined || sides.length !== 2) {
    throw inputError("the template does not hold the text once");
  }
  return [before, after];
}
