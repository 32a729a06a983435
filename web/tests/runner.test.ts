/** What the runner reads is checked, and what its model needs is named before anything is loaded. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { TapmlError, type ErrorKind } from "../src/errors";
import type { Gpu } from "../src/gpu";
import type { Library } from "../src/library";
import { unpackLibrary } from "../src/library_format";
import { argmax, checkLengths, entryInputs } from "../src/runner/inputs";
import { readManifest, type Manifest, type ModelSizes } from "../src/runner/manifest";
import { PlanRunner } from "../src/runner/plan_runner";
import { preflight } from "../src/runner/preflight";
import { TextStream } from "../src/runner/text_stream";
import type { Memory } from "../src/memory";
import type { Steps } from "../src/steps";
import type { ToWorker } from "../src/runner/messages";
import { Model } from "../src/runner/tapml";
import { compareLines, Tokenizer } from "../src/runner/tokenizer";
import { place, type Weight } from "../src/runner/weights";

const GOLDEN = join(process.env["TAPML_ROOT"] ?? "..", "tests", "targets", "golden");
const MODEL: ModelSizes = {
  name: "tiny",
  dtype: "float32",
  contextLength: 4,
  vocabulary: 10,
  endTokens: new Set([1]),
};

const says = (kind: ErrorKind, text: string) => (error: unknown) =>
  error instanceof TapmlError && error.kind === kind && error.message.includes(text);

const file = (bytes: number): object => ({ bytes, sha256: "0".repeat(64) });

/** A manifest that is right, and one with these parts of it changed. */
function manifest(changes: Record<string, unknown> = {}): Uint8Array {
  const whole = {
    format: "tapml browser model",
    version: 1,
    model: { name: "m", dtype: "float32", context_length: 8, vocabulary: 9, end_tokens: [1] },
    plan: { version: 1, state: { s: { dtype: "float32", shape: [1, 2] } }, entries: {} },
    device: { name: "d" },
    verdict: { status: "pass", text: "fine" },
    tokenizer: { reader: "none", text: "" },
    weights: ["w.0"],
    files: { "library.msgpack": file(9), "w.0": file(100) },
    ...changes,
  };
  return new TextEncoder().encode(JSON.stringify(whole));
}

test("a manifest gives sizes, state and files", () => {
  const read = readManifest(manifest());
  assert.equal(read.model.contextLength, 8);
  assert.deepEqual(read.weights.map(({ name, bytes }) => [name, bytes]), [["w.0", 100]]);
  assert.equal(read.text, null);
});

test("a manifest that makes no sense is refused by what is wrong with it", () => {
  const cases: [Record<string, unknown>, string][] = [
    [{ format: "tapml package" }, "not that of a folder"],
    [{ version: "1" }, 'version "1" of the format'],
    [{ plan: { version: 2 } }, "version 2 of the plan"],
    [{ weights: [] }, "weights is invalid"],
    [{ weights: ["w.1"] }, 'does not list "w.1"'],
    [{ files: { "library.msgpack": file(1 << 29), "w.0": file(1) } }, "expected at most"],
    [{ files: { "library.msgpack": file(9), "w.0": file(65 << 20) } }, "expected at most"],
    [{ files: { "library.msgpack": file(9), "../w": file(1) } }, 'the file "../w"'],
    [{ files: { "library.msgpack": file(9), "w.0": { bytes: -1, sha256: "" } } }, "is invalid"],
    [{ model: { name: "m", dtype: "int8" } }, "the model's dtype"],
    [{ model: { name: "m", dtype: "float32", context_length: 2 ** 25 } }, "context_length is invalid"],
    [{ tokenizer: { reader: "tapml", text: "" } }, 'does not list "tokenizer.json"'],
  ];
  for (const [changes, text] of cases) {
    assert.throws(() => readManifest(manifest(changes)), says("InputError", text), text);
  }
});

const words = (bytes: Uint8Array): number[] => [...new Int32Array(bytes.slice().buffer)];

test("inputs are those of the Python runner", () => {
  const inputs = entryInputs(MODEL, [7, 8], 1);
  assert.deepEqual(words(inputs.get("position_ids")?.bytes ?? new Uint8Array()), [1, 2]);
  assert.deepEqual(words(inputs.get("cache_rows")?.bytes ?? new Uint8Array()), [-1, 0, 1, -1]);
  const mask = new Float32Array(inputs.get("attention_mask")?.bytes.buffer ?? new ArrayBuffer());
  assert.deepEqual([...mask], [0, 0, -1e9, -1e9, 0, 0, 0, -1e9]);
  const half = entryInputs({ ...MODEL, dtype: "float16" }, [7], 2).get("attention_mask");
  // numpy: np.float16(-3e4).view(np.uint16) is 0xf753
  assert.deepEqual([...new Uint16Array(half?.bytes.buffer ?? new ArrayBuffer())], [0, 0, 0, 0xf753]);
  assert.throws(() => entryInputs(MODEL, [10], 0), says("InputError", "not in the vocabulary"));
  assert.throws(() => entryInputs(MODEL, [1, 2], 3), says("InputError", "need a context of 5"));
  checkLengths(MODEL, 3, 2);
  assert.throws(() => { checkLengths(MODEL, 3, 3); }, says("InputError", "need a context of 5"));
});

test("the first of the largest logits is taken, and a NaN counts as the largest", () => {
  const single = (values: number[]): number =>
    argmax(new Uint8Array(Float32Array.from(values).buffer), "float32");
  assert.equal(single([-3, -1, -2, -1]), 1);
  assert.equal(single([1, NaN, 5, NaN]), 1);
  const half = (bits: number[]): number =>
    argmax(new Uint8Array(Uint16Array.from(bits).buffer), "float16");
  assert.equal(half([0xbc00, 0x8000, 0x0000]), 1, "-1, -0 and 0: zeros are equal");
  assert.equal(half([0x3c00, 0x7c00, 0x7bff]), 1, "1, infinity and the largest number");
  assert.equal(half([0x7c00, 0x7e00]), 1, "infinity and NaN");
});

test("weights are found by their header, and one that is not theirs is refused", () => {
  const buffer = { id: 1, nbytes: 8, gpu: {} } as Weight["buffer"];
  const weight = { name: "a", dtype: "float32", shape: [2], buffer };
  const first = (header: unknown): Uint8Array => {
    const text = new TextEncoder().encode(JSON.stringify(header));
    const whole = new Uint8Array(8 + text.length);
    new DataView(whole.buffer).setBigUint64(0, BigInt(text.length), true);
    whole.set(text, 8);
    return whole;
  };
  const right = first({ a: { dtype: "F32", shape: [2], data_offsets: [4, 12] } });
  const [placed] = place(right, right.length + 12, [weight]);
  assert.deepEqual([placed?.start, placed?.end], [right.length + 4, right.length + 12]);
  const cases: [Uint8Array, string][] = [
    [new Uint8Array(4), "a header of -1 bytes"],
    [first({}).subarray(0, 9), "a header of 2 bytes"],
    [first({ a: { dtype: "F32", shape: [3], data_offsets: [0, 12] } }), "hold float32 [3]"],
    [first({ a: { dtype: "F32", shape: [2], data_offsets: [0, 12] } }), "not its shape's"],
    [first({ a: { dtype: "F32", shape: [2], data_offsets: [96, 104] } }), "takes bytes"],
    [first({ a: { dtype: "F32", shape: [-2], data_offsets: [0, 8] } }), "is invalid"],
    [first({ a: { dtype: { toString: 1, valueOf: 1 }, shape: [2] } }), "is invalid"],
    [first({}), "hold nothing"],
  ];
  for (const [content, text] of cases) {
    assert.throws(() => place(content, 100, [weight]), says("InputError", text), text);
  }
});

test("a limit that is too small is named with the kernel and the need", () => {
  const vector = JSON.parse(readFileSync(join(GOLDEN, "entry.json"), "utf-8")) as {
    library: string;
  };
  const library = unpackLibrary(new Uint8Array(Buffer.from(vector.library, "base64")));
  const [name, program] = [...library.entries][0] ?? [];
  assert.ok(name !== undefined && program !== undefined);
  const symbols = program.parameters.flatMap(({ shape }) =>
    shape.filter((extent): extent is string => typeof extent === "string"),
  );
  const longest = new Map([...symbols, ...program.symbols].map((symbol) => [symbol, 64] as const));
  const read = readManifest(manifest());
  const about: Manifest = { ...read, entries: new Map([[name, { outputs: [], longest }]]) };
  const gpu = (changes: Record<string, number>): Gpu =>
    ({
      name: "a small one",
      features: new Set(),
      device: {
        limits: {
          maxBufferSize: 1 << 28,
          maxStorageBufferBindingSize: 1 << 27,
          maxStorageBuffersPerShaderStage: 8,
          maxComputeInvocationsPerWorkgroup: 256,
          maxComputeWorkgroupsPerDimension: 65535,
          maxComputeWorkgroupStorageSize: 16384,
          ...changes,
        },
      },
    }) as unknown as Gpu;
  const { needs, memoryBytes } = preflight(library, about, gpu({}));
  assert.ok(memoryBytes > 0);
  const binding = needs.find(({ what }) => what === "Largest binding");
  assert.ok(binding !== undefined && binding.need > 8);
  assert.throws(
    () => preflight(library, about, gpu({ maxStorageBufferBindingSize: 8 })),
    (error) =>
      says("LimitExceededError", `needs ${binding.need} bytes (largest binding)`)(error) &&
      says("LimitExceededError", "kernel '")(error) &&
      says("LimitExceededError", "the adapter has 8")(error),
  );
  const buffer = needs.find(({ what }) => what === "Largest buffer");
  assert.ok(buffer !== undefined);
  assert.throws(
    () => preflight(library, about, gpu({ maxBufferSize: 8 })),
    (error) =>
      says("LimitExceededError", `${buffer.where} needs ${buffer.need} bytes`)(error) &&
      says("LimitExceededError", "a smaller model or float16: a tensor is one buffer")(error),
  );
});

test("a state tensor has a second buffer only if a run replaces it", () => {
  const parameter = (name: string): object => ({ name, dtype: "float32", shape: [1n, 64n] });
  const entry = (...names: string[]): object => ({ parameters: names.map(parameter), symbols: [] });
  const library = {
    entries: new Map([
      ["prefill", entry("state:replaced", "next:replaced", "state:inPlace", "output:logits")],
      ["decode", entry("state:replaced", "state:inPlace", "output:logits")],
    ]),
  } as unknown as Library;
  const tensor = { dtype: "float32", shape: [1, 64] };
  const about = {
    entries: new Map([["prefill", {}], ["decode", {}]]),
    state: new Map([["replaced", tensor], ["inPlace", tensor]]),
  } as unknown as Manifest;
  const allocated: number[] = [];
  const memory = { allocate: (_: unknown, nbytes: number) => allocated.push(nbytes) };
  new PlanRunner({} as Gpu, memory as unknown as Memory, {} as unknown as Steps, library, about);
  assert.deepEqual(allocated, [256, 256, 256]);
});

test("text waits for the rest of a character, and ends with a replacement where none comes", () => {
  const bytes = new Map([[0, [0x61]], [1, [0xf0, 0x9f]], [2, [0x98, 0x80]], [3, [0x62]]]);
  const codec = {
    decode: (tokens: readonly number[]): string =>
      new TextDecoder().decode(Uint8Array.from(tokens.flatMap((token) => bytes.get(token) ?? []))),
  };
  const stream = new TextStream(codec, [0]);
  assert.deepEqual([1, 2, 3, 1].map((token) => stream.push(token)), ["", "\u{1f600}", "b", ""]);
  assert.equal(stream.finish(), "\ufffd");
});

test("a model that is closed in the middle of a text ends it, and leaving it then is no error", async () => {
  const told: string[] = [];
  const worker = {
    onmessage: null as ((event: { data: unknown }) => void) | null,
    postMessage(message: ToWorker): void {
      told.push(message.type);
      this.onmessage?.({ data: { type: "token", id: 1, token: 7, text: "x" } });
    },
    terminate: (): number => told.push("terminated"),
  };
  const model = new Model(worker as unknown as Worker, {} as Model["about"]);
  const stopping = new AbortController();
  for await (const { text } of model.generateTokens([1], { signal: stopping.signal })) {
    assert.equal(text, "x");
    model.close();
    stopping.abort();
    break;
  }
  assert.deepEqual(told, ["generate", "terminated"]);
  await assert.rejects(model.encode("a"), says("InputError", "the model was closed"));
});

/** A tokenizer with a token for each of these, and what `changes` says. */
function tokenizerOf(tokens: readonly string[], changes: object = {}): Tokenizer {
  return new Tokenizer({
    added_tokens: [],
    normalizer: null,
    pre_tokenizer: null,
    post_processor: null,
    decoder: { type: "Sequence", decoders: [{ type: "ByteFallback" }, { type: "Fuse" }] },
    model: {
      type: "BPE",
      vocab: Object.fromEntries(tokens.map((token, id) => [token, id])),
      merges: [],
      byte_fallback: true,
    },
    ...changes,
  });
}

test("an added token that matches only words is text beside a letter", () => {
  const word = { id: 2, content: "ab", single_word: true, lstrip: false, rstrip: false, normalized: false, special: false };
  const tokenizer = tokenizerOf(["a", "b"], { added_tokens: [word] });
  assert.deepEqual(tokenizer.encode("ab"), [2]);
  assert.deepEqual(tokenizer.encode("aba"), [0, 1, 0]);
  assert.deepEqual(tokenizer.encode("bab"), [1, 0, 1]);
});

test("the behaviours of a split are those of `tapml run`", () => {
  const words = ["a", "B", "BB", "aB", "Ba", "BBa", "aBB"];
  const pieces = (behavior: string, invert = false): string[] => {
    const pre_tokenizer = { type: "Split", pattern: { String: "B" }, behavior, invert };
    const model = { type: "BPE", vocab: Object.fromEntries(words.map((word, id) => [word, id])), merges: [], ignore_merges: true };
    return tokenizerOf([], { pre_tokenizer, model }).encode("aBBa").map((id) => words[id] ?? "");
  };
  assert.deepEqual(pieces("Isolated"), ["a", "B", "B", "a"]);
  assert.deepEqual(pieces("Removed"), ["a", "a"]);
  assert.deepEqual(pieces("Contiguous", true), ["a", "BB", "a"]);
  assert.deepEqual(pieces("MergedWithPrevious"), ["aB", "B", "a"]);
  assert.deepEqual(pieces("MergedWithNext"), ["a", "B", "Ba"]);
  assert.deepEqual(pieces("MergedWithPrevious", true), ["a", "B", "Ba"]);
});

test("digits are those of every script, one by one or together", () => {
  const vocab = { "1": 0, "2": 1, "12": 2, "\u0661": 3, "\u0662": 4, "\u0661\u0662": 5 };
  const merges = [["1", "2"], ["\u0661", "\u0662"]];
  const ids = (individual_digits: boolean): number[] =>
    tokenizerOf([], {
      pre_tokenizer: { type: "Digits", individual_digits },
      model: { type: "BPE", vocab, merges },
    }).encode("12\u0661\u0662");
  assert.deepEqual([ids(true), ids(false)], [[0, 1, 3, 4], [2, 5]]);
});

test("bytes that are a mark of order are text, and those that are none a replacement each", () => {
  const tokenizer = tokenizerOf(["a", "<0xEF>", "<0xBB>", "<0xBF>"]);
  assert.equal(tokenizer.decode([0, 1, 2, 3, 0]), "a\ufeffa");
  assert.equal(tokenizer.decode([1, 2, 0]), "\ufffd\ufffda");
  assert.equal(tokenizer.decode([]), "");
  assert.equal(tokenizer.decode([99]), "");
  assert.deepEqual(tokenizer.encode("\ufeff"), [1, 2, 3]);
});

test("a character of several tokens is shown once it is whole", () => {
  const tokenizer = tokenizerOf(["a", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>"]);
  const stream = new TextStream(tokenizer, [0]);
  const shown = [1, 2, 3, 4, 0, 1].map((token) => stream.push(token));
  assert.deepEqual(shown, ["", "", "", "\u{1f600}", "a", ""]);
  assert.equal(stream.finish(), "\ufffd");
});

test("a tokenizer that gives other tokens than the lines say is refused", () => {
  const tokenizer = tokenizerOf(["a", "b"]);
  compareLines(tokenizer, [["ab", [0, 1], "ab"], ["", [], ""]]);
  const cases: [unknown, string][] = [
    [[["ab", [1, 0], "ab"]], 'this browser reads "ab" as other tokens'],
    [[["ab", [0, 1], "ba"]], 'this browser reads "ab" as other tokens'],
    [[["ab", [0, 1]]], "are invalid"],
    [{}, "are invalid"],
  ];
  for (const [lines, text] of cases) {
    assert.throws(() => { compareLines(tokenizer, lines); }, says("InputError", text), text);
  }
  assert.throws(() => new Tokenizer([]), says("InputError", "expected a JSON object"));
  assert.throws(() => tokenizerOf([], { decoder: { type: "Odd" } }), /Unknown Decoder type: Odd/);
  assert.throws(() => tokenizer.encode("a\ud83d"), says("InputError", "half of a surrogate pair"));
});
