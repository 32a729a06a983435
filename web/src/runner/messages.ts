/** What the runner's worker and those who use it tell each other. */

import type { ErrorKind } from "../errors";
import type { Facts } from "../messages";
import type { Need } from "./preflight";

export type Stage = "manifest" | "tokenizer" | "weights" | "ready";

/** What is known of model and GPU before the weights are loaded. */
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
  /** What the model needs of the GPU, the largest of each kind. */
  readonly needs: readonly Need[];
  /** Weights, state and what the longest input takes besides. */
  readonly memoryBytes: number;
}

export interface Failure {
  readonly kind: ErrorKind;
  readonly message: string;
  /** What the browser's WebGPU said. */
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
  | { readonly type: "progress"; readonly stage: Stage; readonly done: number; readonly total: number }
  | { readonly type: "about"; readonly about: About }
  | { readonly type: "loaded" }
  | { readonly type: "failed"; readonly failure: Failure }
  /** The GPU device of a loaded model is lost. */
  | { readonly type: "lost"; readonly failure: Failure }
  /** `token` is -1 where text that was held back comes last. */
  | { readonly type: "token"; readonly id: number; readonly token: number; readonly text: string }
  | { readonly type: "answer"; readonly id: number; readonly value: string | readonly number[] | null }
  | { readonly type: "refused"; readonly id: number; readonly failure: Failure };
