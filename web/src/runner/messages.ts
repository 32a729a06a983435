/** Messages between the runner's worker and its users. */

import type { ErrorKind } from "../errors";
import type { Facts } from "../messages";
import type { Need } from "./preflight";

export type Stage = "manifest" | "tokenizer" | "weights" | "ready";

/** Facts about model and GPU, known before the weights are loaded. */
export interface About {
  readonly model: string;
  readonly dtype: string;
  readonly contextLength: number;
  readonly vocabulary: number;
  readonly weightBytes: number;
  readonly kernels: number;
  readonly verdict: string;
  readonly tokenizer: string;
  readonly takesText: boolean;
  readonly adapter: string;
  readonly facts: Facts;
  /** How this differs from where the model was validated, a sentence each. */
  readonly notes: readonly string[];
  /** The model's largest need of each limit. */
  readonly needs: readonly Need[];
  /** Weights, state, and temporaries of the longest input. */
  readonly memoryBytes: number;
}

export interface Failure {
  readonly kind: ErrorKind;
  readonly message: string;
  /** The browser's WebGPU message. */
  readonly log: string;
}

export type ToWorker =
  | { readonly type: "load"; readonly base: string }
  | {
      readonly type: "generate";
      readonly id: number;
      readonly prompt: string | readonly number[];
      readonly maxNewTokens: number;
    }
  | { readonly type: "stop"; readonly id: number }
  | { readonly type: "encode"; readonly id: number; readonly text: string }
  | { readonly type: "decode"; readonly id: number; readonly tokens: readonly number[] };

export type FromWorker =
  | {
      readonly type: "progress";
      readonly stage: Stage;
      readonly done: number;
      readonly total: number;
    }
  | { readonly type: "about"; readonly about: About }
  | { readonly type: "loaded" }
  | { readonly type: "failed"; readonly failure: Failure }
  | { readonly type: "lost"; readonly failure: Failure }
  /** `token` is -1 for the rest of the text at the end. */
  | { readonly type: "token"; readonly id: number; readonly token: number; readonly text: string }
  | {
      readonly type: "answer";
      readonly id: number;
      readonly value: string | readonly number[] | null;
    }
  | { readonly type: "refused"; readonly id: number; readonly failure: Failure };
