/** `model.json`: what the folder holds, with size and SHA-256 of every file. None of it is trusted. */

import { bitsOf } from "../dtype";
import { inputError, messageOf, type TapmlError } from "../errors";

const FORMAT = "tapml browser model";
const VERSION = 1;
const PLAN_VERSION = 1;
export const MANIFEST = "model.json";
export const LIBRARY = "library.msgpack";
export const TOKENIZER = "tokenizer.json";
export const LINES = "tokenizer_lines.json";
export const MAX_MANIFEST_BYTES = 16 << 20;

/** Bounds on file sizes; parts of the weights have a separate bound. */
const MAX_BYTES: ReadonlyMap<string, number> = new Map([
  [LIBRARY, 256 << 20],
  [TOKENIZER, 64 << 20],
  [LINES, 8 << 20],
]);
const MAX_PART_BYTES = 64 << 20;
const MAX_PARTS = 16384;
const MAX_FILES = MAX_PARTS + 64;
const MAX_TEXT = 1 << 16;
const MAX_RANK = 16;
const MAX_ITEMS = 1 << 16;
const MAX_COUNT = 2 ** 31 - 1;
/** Every step makes a mask of this size. */
const MAX_CONTEXT = 1 << 24;
const FILE_NAME = /^(?!\.)[\w.+-]{1,160}$/;
const SHA256 = /^[0-9a-f]{64}$/;

export interface StoredFile {
  readonly name: string;
  readonly bytes: number;
  readonly sha256: string;
}

export interface TensorSpecification {
  readonly dtype: string;
  readonly shape: readonly number[];
}

export interface PlanEntry {
  readonly outputs: readonly string[];
  /** The largest value of each shape symbol; those without a bound end at the context. */
  readonly longest: ReadonlyMap<string, number>;
}

export interface ModelSizes {
  readonly name: string;
  readonly dtype: "float32" | "float16";
  readonly contextLength: number;
  readonly vocabulary: number;
  readonly endTokens: ReadonlySet<number>;
}

export interface Manifest {
  readonly model: ModelSizes;
  readonly state: ReadonlyMap<string, TensorSpecification>;
  readonly entries: ReadonlyMap<string, PlanEntry>;
  /** Where it was validated: name, vendor_platform, driver_version. */
  readonly device: ReadonlyMap<string, string>;
  readonly verdict: string;
  readonly tokenizer: { readonly reader: string; readonly text: string };
  readonly library: StoredFile;
  /** `tokenizer.json` and its test lines; null if the model takes token ids only. */
  readonly text: { readonly tokenizer: StoredFile; readonly lines: StoredFile } | null;
  /** The parts of one safetensors file, in order. */
  readonly weights: readonly StoredFile[];
}

type Fields = Readonly<Record<string, unknown>>;

/** Read the manifest; raises an InputError that names its fault. */
export function readManifest(content: Uint8Array): Manifest {
  const data = objectOf(jsonOf(content, MANIFEST), MANIFEST);
  if (data["format"] !== FORMAT) {
    throw inputError(`${MANIFEST} is not that of a folder made by \`tapml package --browser\``);
  }
  checkVersion(data["version"], VERSION, "format");
  const plan = objectOf(data["plan"], "plan");
  checkVersion(plan["version"], PLAN_VERSION, "plan");
  const model = sizesOf(objectOf(data["model"], "model"));
  const files = filesOf(objectOf(data["files"], "files"));
  const tokenizer = textsOf(objectOf(data["tokenizer"], "tokenizer"));
  const reader = tokenizer.get("reader") ?? "none";
  const weights = listOf(data["weights"], MAX_PARTS, "weights").map((name) =>
    fileOf(files, textOf(name, "weights"), MAX_PART_BYTES),
  );
  if (weights.length === 0) {
    throw damaged("weights");
  }
  return {
    model,
    state: mapOf(objectOf(plan["state"], "state"), "state", tensorOf),
    entries: mapOf(objectOf(plan["entries"], "entries"), "entries", (value) =>
      entryOf(value, model.contextLength),
    ),
    device: textsOf(objectOf(data["device"], "device")),
    verdict: textOf(objectOf(data["verdict"], "verdict")["text"] ?? "", "verdict"),
    tokenizer: { reader, text: tokenizer.get("text") ?? "" },
    library: known(files, LIBRARY),
    text: reader === "none" ? null : { tokenizer: known(files, TOKENIZER), lines: known(files, LINES) },
    weights,
  };
}

/** Parse a file's JSON; raises an InputError that names the file. */
export function jsonOf(content: Uint8Array, name: string): unknown {
  try {
    return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(content)) as unknown;
  } catch (error) {
    throw inputError(`${name} is not valid JSON (${messageOf(error)}): copy the folder again`);
  }
}

function damaged(what: string): TapmlError {
  return inputError(`${MANIFEST} is damaged: ${what} is invalid`);
}

function checkVersion(version: unknown, supported: number, what: string): void {
  if (version === supported) {
    return;
  }
  const shown = JSON.stringify(version ?? null).slice(0, 20);
  throw inputError(
    `this folder has version ${shown} of the ${what}, and its page reads version ${supported}: ` +
      "make the folder again with `tapml package --browser`",
  );
}

function objectOf(value: unknown, what: string): Fields {
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw damaged(what);
  }
  return value as Fields;
}

function listOf(value: unknown, most: number, what: string): readonly unknown[] {
  if (!Array.isArray(value) || value.length > most) {
    throw damaged(what);
  }
  return value as readonly unknown[];
}

function textOf(value: unknown, what: string): string {
  if (typeof value !== "string" || value.length > MAX_TEXT) {
    throw damaged(what);
  }
  return value;
}

function countOf(value: unknown, lowest: number, what: string, most = MAX_COUNT): number {
  if (typeof value !== "number" || !Number.isInteger(value) || value < lowest || value > most) {
    throw damaged(what);
  }
  return value;
}

function mapOf<T>(
  fields: Fields,
  what: string,
  read: (value: unknown, what: string) => T,
): ReadonlyMap<string, T> {
  const entries = Object.entries(fields);
  if (entries.length > MAX_ITEMS) {
    throw damaged(what);
  }
  return new Map(entries.map(([name, value]) => [name, read(value, what)]));
}

const textsOf = (fields: Fields): ReadonlyMap<string, string> => mapOf(fields, "a text", textOf);

function sizesOf(fields: Fields): ModelSizes {
  const dtype = fields["dtype"];
  if (dtype !== "float32" && dtype !== "float16") {
    throw damaged("the model's dtype");
  }
  return {
    name: textOf(fields["name"], "the model's name"),
    dtype,
    contextLength: countOf(fields["context_length"], 1, "context_length", MAX_CONTEXT),
    vocabulary: countOf(fields["vocabulary"], 1, "vocabulary"),
    endTokens: new Set(
      listOf(fields["end_tokens"], MAX_ITEMS, "end_tokens").map((token) => countOf(token, 0, "end_tokens")),
    ),
  };
}

function tensorOf(value: unknown): TensorSpecification {
  const fields = objectOf(value, "a tensor");
  const dtype = textOf(fields["dtype"], "a tensor's dtype");
  bitsOf(dtype);
  const shape = listOf(fields["shape"], MAX_RANK, "a tensor's shape").map((extent) =>
    countOf(extent, 0, "a tensor's shape"),
  );
  return { dtype, shape };
}

function entryOf(value: unknown, context: number): PlanEntry {
  const fields = objectOf(value, "an entry");
  const outputs = listOf(fields["outputs"], MAX_ITEMS, "outputs");
  return {
    outputs: outputs.map((name) => textOf(name, "outputs")),
    longest: mapOf(objectOf(fields["bounds"], "bounds"), "bounds", (bounds) => {
      const [lower, upper] = listOf(bounds, 2, "bounds");
      const least = countOf(lower, 0, "bounds");
      return upper === null || upper === undefined ? context : countOf(upper, least, "bounds");
    }),
  };
}

function filesOf(fields: Fields): ReadonlyMap<string, StoredFile> {
  const entries = Object.entries(fields);
  if (entries.length > MAX_FILES) {
    throw damaged("files");
  }
  return new Map(
    entries.map(([name, value]) => {
      const { bytes, sha256 } = objectOf(value, "a file") as { bytes?: unknown; sha256?: unknown };
      const hash = textOf(sha256, "a SHA-256");
      // A plain name cannot lead out of the folder.
      if (!FILE_NAME.test(name) || !SHA256.test(hash)) {
        throw damaged(`the file ${JSON.stringify(name.slice(0, 80))}`);
      }
      return [name, { name, bytes: countOf(bytes, 0, `the size of ${name}`), sha256: hash }];
    }),
  );
}

function fileOf(files: ReadonlyMap<string, StoredFile>, name: string, most: number): StoredFile {
  const found = files.get(name);
  if (found === undefined) {
    throw inputError(`${MANIFEST} does not list ${JSON.stringify(name.slice(0, 80))}`);
  }
  if (found.bytes > most) {
    throw inputError(`${name} has ${found.bytes} bytes: expected at most ${most}`);
  }
  return found;
}

const known = (files: ReadonlyMap<string, StoredFile>, name: string): StoredFile =>
  fileOf(files, name, MAX_BYTES.get(name) ?? 0);
