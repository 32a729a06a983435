/** What the runner reads is checked, and what its model needs is named before anything is loaded. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { TapmlError, type ErrorKind } from "../src/errors";
import type { Gpu } from "../src/gpu";
import { unpackLibrary } from "../src/library_format";
import { argmax, checkLengths, entryInputs } from "../src/runner/inputs";
import { readManifest, type Manifest, type ModelSizes } from "../src/runner/manifest";
import { preflight } from "../src/runner/preflight";
import { TextStream } from "../src/runner/text_stream";
import type { ToWorker } from "../src/runner/messages";
import { Model } from "../src/runner/tapml";
import { compilePattern } from "../src/runner/tokenizer/pattern";
import { Tokenizer } from "../src/runner/tokenizer/tokenizer";
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
    [{ weights: [] }, "weights makes no sense"],
    [{ weights: ["w.1"] }, 'says nothing of "w.1"'],
    [{ files: { "library.msgpack": file(1 << 29), "w.0": file(1) } }, "expected at most"],
    [{ files: { "library.msgpack": file(9), "w.0": file(65 << 20) } }, "expected at most"],
    [{ files: { "library.msgpack": file(9), "../w": file(1) } }, 'the file "../w"'],
    [{ files: { "library.msgpack": file(9), "w.0": { bytes: -1, sha256: "" } } }, "makes no sense"],
    [{ model: { name: "m", dtype: "int8" } }, "the model's dtype"],
    [{ model: { name: "m", dtype: "float32", context_length: 2 ** 25 } }, "context_length makes"],
    [{ tokenizer: { reader: "tapml", text: "" } }, 'says nothing of "tokenizer.json"'],
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
    [first({ a: { dtype: "F32", shape: [-2], data_offsets: [0, 8] } }), "makes no sense"],
    [first({ a: { dtype: { toString: 1, valueOf: 1 }, shape: [2] } }), "makes no sense"],
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

test("what a tokenizer uses and is not supported is named", () => {
  const model = { type: "BPE", vocab: { a: 0, b: 1, ab: 2 }, merges: [["a", "b"]] };
  const whole = (changes: object): unknown => ({ model, decoder: { type: "Fuse" }, ...changes });
  assert.deepEqual(new Tokenizer(whole({})).encode("abba"), [2, 1, 0]);
  const split = (Regex: string): object => ({
    pre_tokenizer: { type: "Split", pattern: { Regex }, behavior: "Isolated", invert: false },
  });
  // A possessive repetition gives nothing back: there is no "ab" behind all letters.
  assert.deepEqual(new Tokenizer(whole(split("[ab]++b"))).encode("aab"), [0, 2]);
  // A character beyond the first plane is one, behind a backslash as well.
  assert.equal([..."\u{1f600}a".matchAll(compilePattern("\\\u{1f600}"))].length, 1);
  const cases: [object, string][] = [
    [{ model: { type: "Unigram" } }, "the model 'Unigram' is not supported"],
    [{ normalizer: { type: "Precompiled" } }, "the normalizer 'Precompiled'"],
    [{ pre_tokenizer: { type: "BertPreTokenizer" } }, "the pre-tokenizer 'BertPreTokenizer'"],
    [{ post_processor: { type: "RobertaProcessing" } }, "the post-processor 'RobertaProcessing'"],
    [{ decoder: { type: "WordPiece" } }, "the decoder 'WordPiece'"],
    [{ model: { ...model, merges: [["a", "c"]] } }, "merge 0 makes no sense"],
    [split("^a"), "the anchor ^"],
    [split("(?<x>a)"), "the group (?<x"],
    [split("a{2}+"), "{2}+"],
    [split("[a&&b]"), "&&"],
    [split("\\X"), "\\X"],
    [split("(?i:ss)"), "whose letters fold to one"],
    [split("(a"), "a group that does not end"],
  ];
  for (const [changes, text] of cases) {
    assert.throws(() => new Tokenizer(whole(changes)), says("InputError", text), text);
  }
});
