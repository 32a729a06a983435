/**
 * Work on the GPU between error scopes, without waiting for each step's verdict.
 *
 * WebGPU says late what was wrong. Each step has three scopes of its own and knows the place of its
 * command; whoever needs certainty, before an answer or a read, waits for all steps at once.
 */

import { TapmlError, type ErrorKind } from "./errors";

/** Scopes in the order in which they are pushed; an error is caught by the innermost that fits. */
const FILTERS: readonly GPUErrorFilter[] = ["validation", "internal", "out-of-memory"];
const KINDS: Record<GPUErrorFilter, ErrorKind> = {
  validation: "RemoteError",
  internal: "RemoteError",
  "out-of-memory": "SetupError",
};

/** An error of a step, and the ordinal of the command it belongs to. */
export class StepError extends TapmlError {
  constructor(
    readonly ordinal: number,
    error: TapmlError,
  ) {
    super(error.kind, error.message, error.log);
  }
}

interface Step {
  readonly ordinal: number;
  readonly verdict: Promise<TapmlError | null>;
}

/** Run `work` between scopes; what they caught comes later. Errors thrown by it come at once. */
export function scoped<T>(
  device: GPUDevice,
  stage: string,
  work: () => T,
): { readonly result: T; readonly verdict: Promise<TapmlError | null> } {
  for (const filter of FILTERS) {
    device.pushErrorScope(filter);
  }
  let popped: Promise<GPUError | null>[] = [];
  try {
    const result = work();
    popped = popAll(device);
    return { result, verdict: verdictOf(popped, stage) };
  } finally {
    if (popped.length === 0) {
      // A thrown error must not leave scopes behind, which would catch what is not theirs.
      for (const each of popAll(device)) {
        each.catch(() => null);
      }
    }
  }
}

function popAll(device: GPUDevice): Promise<GPUError | null>[] {
  return FILTERS.map(() => device.popErrorScope());
}

async function verdictOf(
  popped: readonly Promise<GPUError | null>[],
  stage: string,
): Promise<TapmlError | null> {
  let caught: (GPUError | null)[];
  try {
    caught = await Promise.all(popped);
  } catch {
    return new TapmlError("DeviceLostError", `the GPU device was lost while ${stage}`);
  }
  // Popped innermost first.
  const filters = [...FILTERS].reverse();
  for (const [index, error] of caught.entries()) {
    const filter = filters[index];
    if (error !== null && filter !== undefined) {
      return gpuError(filter, stage, error.message);
    }
  }
  return null;
}

/** An error as WebGPU gave it, with the stage in which it came. */
export function gpuError(kind: GPUErrorFilter, stage: string, message: string): TapmlError {
  const hint =
    kind === "out-of-memory" ? "; free buffers, or close other pages that use the GPU" : "";
  return new TapmlError(
    KINDS[kind],
    `WebGPU reports ${kind === "out-of-memory" ? "that memory ran out" : `an error (${kind})`} ` +
      `while ${stage}: ${message || "the browser gives no text"}${hint}`,
    JSON.stringify({ kind, reason: "", message, messages: [], stage }),
  );
}

/** The steps of one batch. */
export class Steps {
  /** Place of the command that runs: its position among all that the batch has begun. */
  ordinal = 0;
  private pending: Step[] = [];

  constructor(private readonly device: GPUDevice) {}

  run<T>(stage: string, work: () => T): T {
    const { result, verdict } = scoped(this.device, stage, work);
    this.pending.push({ ordinal: this.ordinal, verdict });
    return result;
  }

  /** Wait for the verdict on everything so far; raises the first error as a StepError. */
  async settle(): Promise<void> {
    const pending = this.pending;
    this.pending = [];
    const verdicts = await Promise.all(pending.map((step) => step.verdict));
    for (const [index, error] of verdicts.entries()) {
      if (error !== null) {
        throw new StepError(pending[index]?.ordinal ?? this.ordinal, error);
      }
    }
  }
}
