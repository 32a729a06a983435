/** The runner's worker: holds the model, so that the page stays responsive. */

import { messageOf, TapmlError } from "../errors";
import { Engine } from "./engine";
import type { Failure, FromWorker, ToWorker } from "./messages";

const tell = (message: FromWorker): void => {
  postMessage(message);
};

const failureOf = (error: unknown): Failure =>
  error instanceof TapmlError
    ? { kind: error.kind, message: error.message, log: error.log }
    : { kind: "RemoteError", message: messageOf(error), log: (error as Error | null)?.stack ?? "" };

const stopped = new Set<number>();
let engine: Engine | null = null;

async function load(base: string): Promise<void> {
  try {
    engine = await Engine.load(
      base,
      {
        progress: (stage, done, total) => {
          tell({ type: "progress", stage, done, total });
        },
        about: (about) => {
          tell({ type: "about", about });
        },
      },
      new AbortController().signal,
    );
    tell({ type: "loaded" });
    void engine.lost.then((error) => {
      tell({ type: "lost", failure: failureOf(error) });
    });
  } catch (error) {
    tell({ type: "failed", failure: failureOf(error) });
  }
}

async function answer(
  id: number,
  work: (model: Engine) => Promise<string | readonly number[] | null>,
): Promise<void> {
  try {
    if (engine === null) {
      throw new TapmlError("InputError", "the model is not loaded");
    }
    tell({ type: "answer", id, value: await work(engine) });
  } catch (error) {
    tell({ type: "refused", id, failure: failureOf(error) });
  } finally {
    stopped.delete(id);
  }
}

onmessage = ({ data }: MessageEvent<ToWorker>): void => {
  switch (data.type) {
    case "load":
      void load(data.base);
      break;
    case "generate": {
      const { id, prompt, maxNewTokens } = data;
      void answer(id, async (model) => {
        for await (const { token, text } of model.generate(prompt, maxNewTokens, () => stopped.has(id))) {
          tell({ type: "token", id, token, text });
        }
        return null;
      });
      break;
    }
    case "stop":
      stopped.add(data.id);
      break;
    case "encode":
      void answer(data.id, (model) => Promise.resolve(model.encode(data.text)));
      break;
    case "decode":
      void answer(data.id, (model) => Promise.resolve(model.decode(data.tokens)));
  }
};
