/**
 * Work on the GPU between error scopes, without waiting for each step's verdict.
 *
 * WebGPU reports errors late. Each step has three error scopes and knows the place of its command;
 * `settle` waits for the verdicts of all steps, before an answer or a read.
 */

import { TapmlError, type ErrorKind } from "./errors";
import { Submission } from "./submission";

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

/** Encoded, not yet submitted work: its first command and its stages. */
interface Gathered {
  readonly ordinal: number;
  readonly stages: Set<string>;
  commands: number;
}

/** Run `work` between error scopes, whose verdict comes later; it may throw at once. */
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
      // After a throw, remove the scopes: they would catch errors of other steps.
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

/** A WebGPU error with the stage in which it occurred. */
export function gpuError(kind: GPUErrorFilter, stage: string, message: string): TapmlError {
  const hint = kind === "out-of-memory" ? "; free buffers, or close other pages that use the GPU" : "";
  return new TapmlError(
    KINDS[kind],
    `WebGPU reports ${kind === "out-of-memory" ? "that memory ran out" : `an error (${kind})`} ` +
      `while ${stage}: ${message || "the browser gives no text"}${hint}`,
    JSON.stringify({ kind, reason: "", message, messages: [], stage }),
  );
}

const MAX_STAGES_TOLD = 4;

/** The steps of one batch. */
export class Steps {
  /** Position of the running command among those that the batch has started. */
  ordinal = 0;
  /** Called at every submit with its stages and its number of commands. */
  submitted: (stage: string, commands: number) => void = () => undefined;
  private pending: Step[] = [];
  private gathered: Gathered | null = null;
  private readonly submission: Submission;

  /**
   * With `gathers`, the most commands of a submit, encoded work waits for `flush`. Flush before other
   * sessions run and before waiting for the GPU: the encoder is the device's, and memory may change hands.
   */
  constructor(
    private readonly device: GPUDevice,
    private readonly gathers: (() => number) | null = null,
  ) {
    this.submission = Submission.for(device);
  }

  /** Do something now; `undo` is called if its verdict is an error. */
  run<T>(stage: string, work: () => T, undo?: () => void): T {
    const { result, verdict } = scoped(this.device, stage, work);
    this.pend(this.ordinal, verdict, undo);
    return result;
  }

  /** Encode commands for the next submit. */
  encode(stage: string, work: (encoder: GPUCommandEncoder) => void): void {
    const gathered = (this.gathered ??= { ordinal: this.ordinal, stages: new Set(), commands: 0 });
    gathered.stages.add(stage);
    gathered.commands += 1;
    try {
      if (this.gathers !== null) {
        work(this.submission.open());
      } else {
        this.run(stage, () => work(this.submission.open()));
      }
    } finally {
      if (this.gathers === null || gathered.commands >= this.gathers()) {
        this.flush();
      }
    }
  }

  flush(): void {
    const { gathered } = this;
    if (gathered === null) {
      return;
    }
    this.gathered = null;
    const stages = [...gathered.stages];
    const more = stages.length > MAX_STAGES_TOLD ? [`${stages.length - MAX_STAGES_TOLD} more`] : [];
    const stage = [...stages.slice(0, MAX_STAGES_TOLD), ...more].join(", ");
    const { verdict } = scoped(this.device, stage, () => this.submission.submit());
    this.pend(gathered.ordinal, verdict);
    this.submitted(stage, gathered.commands);
  }

  /** Wait for the verdict on everything so far; raises the first error as a StepError. */
  async settle(): Promise<void> {
    this.flush();
    const pending = this.pending;
    this.pending = [];
    const verdicts = await Promise.all(pending.map((step) => step.verdict));
    let first: StepError | null = null;
    for (const [index, error] of verdicts.entries()) {
      const ordinal = pending[index]?.ordinal ?? this.ordinal;
      if (error !== null && (first === null || ordinal < first.ordinal)) {
        first = new StepError(ordinal, error);
      }
    }
    if (first !== null) {
      throw first;
    }
  }

  private pend(ordinal: number, found: Promise<TapmlError | null>, undo: () => void = () => undefined): void {
    const verdict = found.then((error) => {
      if (error !== null) {
        undo();
      }
      return error;
    });
    this.pending.push({ ordinal, verdict });
  }
}
