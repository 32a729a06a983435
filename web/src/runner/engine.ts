/** A model in this browser: loaded from its folder, checked, and driven token by token. */

import { MOST_COMMANDS } from "../backlog";
import { messageOf, TapmlError } from "../errors";
import { factsOf } from "../facts";
import { openGpu, type Gpu } from "../gpu";
import { unpackLibrary } from "../library_format";
import { LoadedLibrary } from "../loaded_library";
import { Memory } from "../memory";
import { Steps } from "../steps";
import { Folder } from "./folder";
import { argmax, checkLengths, checkTokens, entryInputs } from "./inputs";
import { LongestMatch } from "./longest_match";
import { Loss } from "./loss";
import { jsonOf, LINES, readManifest, TOKENIZER, type Manifest } from "./manifest";
import type { About, Stage } from "./messages";
import { PlanRunner } from "./plan_runner";
import { preflight } from "./preflight";
import { TextStream, type Codec } from "./text_stream";
import { compareLines, Tokenizer } from "./tokenizer";
import { loadWeights } from "./weights";

const PREFILL = "prefill";
const DECODE = "decode";

export interface Listener {
  /** Done and total work of a stage. */
  progress(stage: Stage, done: number, total: number): void;
  /** Called before anything large is loaded. */
  about(about: About): void;
}

/** A token, and the text that it completes. */
export interface Generated {
  readonly token: number;
  readonly text: string;
}

export class Engine {
  /** Number of texts started: the GPU holds the state of one. */
  private texts = 0;
  private turn: Promise<void> = Promise.resolve();

  private constructor(
    private readonly loss: Loss,
    private readonly manifest: Manifest,
    private readonly runner: PlanRunner,
    private readonly loaded: LoadedLibrary,
    private readonly steps: Steps,
    private readonly tokenizer: Codec | null,
  ) {}

  /** Load the folder at the URL `base`; cheap checks come first. */
  static async load(base: string, listener: Listener, signal: AbortSignal): Promise<Engine> {
    const folder = new Folder(base, signal);
    const gpu = await openGpu();
    const loss = new Loss(gpu.device);
    try {
      return await loss.during(Engine.on(gpu, loss, folder, listener));
    } catch (error) {
      gpu.device.destroy();
      throw error;
    }
  }

  private static async on(gpu: Gpu, loss: Loss, folder: Folder, listener: Listener): Promise<Engine> {
    listener.progress("manifest", 0, 1);
    const manifest = readManifest(await folder.manifest());
    const library = unpackLibrary(await folder.file(manifest.library));
    const weightBytes = manifest.weights.reduce((sum, part) => sum + part.bytes, 0);
    const about = {
      model: manifest.model.name,
      contextLength: manifest.model.contextLength,
      vocabulary: manifest.model.vocabulary,
      weightBytes,
      kernels: library.kernels.size,
      dtype: manifest.model.dtype,
      verdict: manifest.verdict,
      tokenizer: manifest.tokenizer.text,
      takesText: manifest.text !== null,
      adapter: gpu.name,
      facts: factsOf(gpu),
      notes: notesOf(manifest, gpu),
    };
    listener.about({ ...about, needs: [], memoryBytes: 0 });
    listener.about({ ...about, ...preflight(library, manifest, gpu) });

    const tokenizer = await textOf(folder, manifest, listener);
    const memory = new Memory(gpu.device);
    const steps = new Steps(gpu.device, () => MOST_COMMANDS);
    const runner = new PlanRunner(gpu, memory, steps, library, manifest);
    // All memory is allocated before any weight is fetched.
    await steps.settle();
    let fetched = 0;
    const progress = (nbytes: number): void => {
      fetched += nbytes;
      listener.progress("weights", fetched, weightBytes);
    };
    // Compile kernels while weights load, once the first part is good.
    let begin = (): void => undefined;
    const begun = new Promise<void>((resolve) => {
      begin = resolve;
    });
    const parts = manifest.weights;
    const [loaded] = await Promise.all([
      begun.then(() => LoadedLibrary.load(gpu, memory, library)),
      loadWeights(folder, parts, runner.weights, memory, steps, progress, () => begin()),
    ]);
    listener.progress("ready", 1, 1);
    return new Engine(loss, manifest, runner, loaded, steps, tokenizer);
  }

  /** Resolves if the GPU device is lost; later steps raise the same error. */
  get lost(): Promise<TapmlError> {
    return this.loss.told;
  }

  /** Token ids of a text; raises an InputError if the model takes token ids only. */
  encode(text: string): number[] {
    return this.codec().encode(text);
  }

  decode(tokens: readonly number[]): string {
    return this.codec().decode(tokens);
  }

  /** Greedy, as in `generate.py`; an end token comes last. */
  async *generate(
    prompt: string | readonly number[],
    maxNewTokens: number,
    stopped: () => boolean,
  ): AsyncGenerator<Generated> {
    const { model } = this.manifest;
    const ids = typeof prompt === "string" ? this.encode(prompt) : [...prompt];
    checkTokens(model, ids);
    const room = model.contextLength - ids.length + 1;
    const count = room > 0 ? Math.min(maxNewTokens, room) : maxNewTokens;
    checkLengths(model, ids.length, count);
    this.texts += 1;
    const number = this.texts;
    const stream = this.tokenizer === null ? null : new TextStream(this.tokenizer, ids);
    // A model without prefill reads its prompt token by token.
    const whole = ids.length > 1 && this.manifest.entries.has(PREFILL);
    const last = whole ? 0 : ids.length - 1;
    let entry = whole ? PREFILL : DECODE;
    let inputs = entryInputs(model, ids.slice(last), last);
    let position = ids.length;
    await this.exclusive(number, async () => {
      this.runner.reset();
      await this.steps.settle();
      for (let at = 0; at < last; at += 1) {
        await this.runner.run(this.loaded, DECODE, entryInputs(model, ids.slice(at, at + 1), at));
      }
    });
    for (let step = 0; step < count && !stopped(); step += 1) {
      const { bytes, dtype } = await this.exclusive(number, () =>
        this.runner.run(this.loaded, entry, inputs),
      );
      const token = argmax(bytes, dtype);
      yield { token, text: stream?.push(token) ?? "" };
      if (model.endTokens.has(token) || step + 1 === count) {
        break;
      }
      entry = DECODE;
      inputs = entryInputs(model, [token], position);
      position += 1;
    }
    const rest = stream?.finish() ?? "";
    if (rest !== "") {
      yield { token: -1, text: rest };
    }
  }

  private codec(): Codec {
    if (this.tokenizer === null) {
      throw new TapmlError(
        "InputError",
        `this model takes token ids alone here: ${this.manifest.tokenizer.text}`,
      );
    }
    return this.tokenizer;
  }

  /** Run steps one at a time, and only of the latest text. */
  private async exclusive<T>(text: number, work: () => Promise<T>): Promise<T> {
    const before = this.turn;
    let end = (): void => undefined;
    this.turn = new Promise((resolve) => {
      end = resolve;
    });
    await before;
    try {
      if (text !== this.texts) {
        throw new TapmlError(
          "InputError",
          "another text was begun on this model before this one has ended: the GPU holds the state " +
            "of one; take one text after the other",
        );
      }
      return await this.loss.during(work());
    } finally {
      end();
    }
  }
}

async function textOf(folder: Folder, manifest: Manifest, listener: Listener): Promise<Codec | null> {
  if (manifest.text === null) {
    return null;
  }
  listener.progress("tokenizer", 0, 1);
  const [content, lines] = await Promise.all([
    folder.file(manifest.text.tokenizer),
    folder.file(manifest.text.lines),
  ]);
  try {
    const data = jsonOf(content, TOKENIZER);
    const matches = manifest.tokenizer.reader === "longest-match";
    const tokenizer: Codec = matches ? new LongestMatch(data) : new Tokenizer(data);
    compareLines(tokenizer, jsonOf(lines, LINES));
    return tokenizer;
  } catch (error) {
    throw new TapmlError("InputError", `${TOKENIZER} cannot be used here: ${messageOf(error)}`);
  }
}

/** How this GPU differs from the one of the validation. */
function notesOf(manifest: Manifest, gpu: Gpu): string[] {
  const name = manifest.device.get("name") ?? "";
  const vendor = manifest.device.get("vendor_platform") ?? "";
  const here = [gpu.name, String(gpu.description["vendor_platform"])] as const;
  return here[0] === name && here[1] === vendor
    ? []
    : [`validated on ${name} (${vendor}), runs on ${here[0]} (${here[1]}): it has not been checked here`];
}
