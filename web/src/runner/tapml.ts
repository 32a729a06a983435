/**
 * A model in your own page, in three lines:
 *
 *     import { load } from "./tapml.js";
 *     const model = await load("./");
 *     for await (const piece of model.generate("The value of the")) console.log(piece);
 *
 * The model runs in a worker, `worker.js` beside this file.
 */

import { TapmlError } from "../errors";
import type { About, Failure, FromWorker, Stage, ToWorker } from "./messages";
import { LongestMatch } from "./longest_match";
import { Tokenizer } from "./tokenizer";

export { LongestMatch, TapmlError, Tokenizer };
export type { About, Stage };

const NEW_TOKENS = 40;

export interface LoadOptions {
  /** Done and total work of a stage, in bytes for the stage "weights". */
  readonly progress?: (stage: Stage, done: number, total: number) => void;
  /** Called before the weights are loaded, also if the model is then refused. */
  readonly about?: (about: About) => void;
}

export interface GenerateOptions {
  /** The most tokens; fewer if an end token comes or the context is full. */
  readonly maxNewTokens?: number;
  /** Stops generation. */
  readonly signal?: AbortSignal;
}

/** A token and the text that it completes; -1 for the rest of the text at the end. */
export interface Piece {
  readonly token: number;
  readonly text: string;
}

type Listener = (message: FromWorker) => void;

const errorOf = ({ kind, message, log }: Failure): TapmlError => new TapmlError(kind, message, log);

/** Load the folder at an address, relative to the page; raises a TapmlError. */
export async function load(folder: string | URL, options: LoadOptions = {}): Promise<Model> {
  const base = new URL(folder, document.baseURI);
  if (!base.pathname.endsWith("/")) {
    base.pathname += "/";
  }
  const worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
  try {
    const about = await new Promise<About>((resolve, reject) => {
      let known: About | undefined;
      worker.onerror = (event) => {
        reject(new TapmlError("SetupError", `worker.js failed: ${event.message || "it did not start"}`));
      };
      worker.onmessage = ({ data }: MessageEvent<FromWorker>) => {
        if (data.type === "progress") {
          options.progress?.(data.stage, data.done, data.total);
        } else if (data.type === "about") {
          known = data.about;
          options.about?.(data.about);
        } else if (data.type === "failed") {
          reject(errorOf(data.failure));
        } else if (data.type === "loaded" && known !== undefined) {
          resolve(known);
        }
      };
      worker.postMessage({ type: "load", base: base.href } satisfies ToWorker);
    });
    return new Model(worker, about);
  } catch (error) {
    worker.terminate();
    throw error;
  }
}

/** A loaded model. It generates one text at a time; starting a second ends the first. */
export class Model {
  /**
   * Resolves if the model is lost: its GPU device was, or its worker failed. Running and later calls are
   * rejected with the same error; `load` again. Never resolves after `close`.
   */
  readonly lost: Promise<TapmlError>;
  private readonly listeners = new Map<number, Listener>();
  private count = 0;
  private ended: TapmlError | null = null;

  constructor(
    private readonly worker: Worker,
    readonly about: About,
  ) {
    this.lost = new Promise((resolve) => {
      const lose = (error: TapmlError): void => {
        this.end(error);
        resolve(error);
      };
      worker.onmessage = ({ data }: MessageEvent<FromWorker>) => {
        if ("id" in data) {
          this.listeners.get(data.id)?.(data);
        } else if (data.type === "lost") {
          lose(errorOf(data.failure));
        }
      };
      worker.onerror = (event) => {
        lose(new TapmlError("RemoteError", `worker.js failed: ${event.message}; load the model again`));
      };
    });
  }

  /** Whether the model is closed or lost. */
  get closed(): boolean {
    return this.ended !== null;
  }

  /** The text that follows a prompt (text, or token ids), piece by piece. */
  async *generate(
    prompt: string | readonly number[],
    options: GenerateOptions = {},
  ): AsyncGenerator<string, void> {
    for await (const { text } of this.generateTokens(prompt, options)) {
      if (text !== "") {
        yield text;
      }
    }
  }

  /** The same with the token of each step; greedy, with an end token last. */
  async *generateTokens(
    prompt: string | readonly number[],
    { maxNewTokens = NEW_TOKENS, signal }: GenerateOptions = {},
  ): AsyncGenerator<Piece, void> {
    const heard: FromWorker[] = [];
    let wake = (): void => undefined;
    const id = this.listen((message) => {
      heard.push(message);
      wake();
    });
    const stop = (): void => {
      if (this.ended === null) {
        this.say({ type: "stop", id });
      }
    };
    let over = false;
    try {
      this.say({ type: "generate", id, prompt, maxNewTokens });
      signal?.addEventListener("abort", stop);
      if (signal?.aborted === true) {
        stop();
      }
      for (;;) {
        const message = heard.shift();
        if (message === undefined) {
          await new Promise<void>((resolve) => {
            wake = resolve;
          });
        } else if (message.type === "token") {
          yield { token: message.token, text: message.text };
        } else {
          over = true;
          if (message.type === "refused") {
            throw errorOf(message.failure);
          }
          return;
        }
      }
    } finally {
      signal?.removeEventListener("abort", stop);
      this.listeners.delete(id);
      if (!over) {
        stop();
      }
    }
  }

  async encode(text: string): Promise<readonly number[]> {
    return (await this.ask((id) => ({ type: "encode", id, text }))) as readonly number[];
  }

  /** Text of token ids; begin, end and other special tokens are left out. */
  async decode(tokens: readonly number[]): Promise<string> {
    return (await this.ask((id) => ({ type: "decode", id, tokens }))) as string;
  }

  /** Free the GPU's memory. */
  close(): void {
    this.end(new TapmlError("InputError", "the model was closed: load it again"));
  }

  private listen(listener: Listener): number {
    this.count += 1;
    this.listeners.set(this.count, listener);
    return this.count;
  }

  private say(message: ToWorker): void {
    if (this.ended !== null) {
      throw this.ended;
    }
    this.worker.postMessage(message);
  }

  private ask(message: (id: number) => ToWorker): Promise<string | readonly number[] | null> {
    return new Promise((resolve, reject) => {
      const id = this.listen((heard) => {
        this.listeners.delete(id);
        if (heard.type === "answer") {
          resolve(heard.value);
        } else if (heard.type === "refused") {
          reject(errorOf(heard.failure));
        }
      });
      this.say(message(id));
    });
  }

  private end(error: TapmlError): void {
    this.ended ??= error;
    this.worker.terminate();
    const failure = { kind: error.kind, message: error.message, log: error.log };
    for (const [id, listener] of [...this.listeners]) {
      listener({ type: "refused", id, failure });
    }
  }
}
