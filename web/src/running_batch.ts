/** A running batch and its growing answer. */

import { inputError, protocolError } from "./errors";
import type { DeviceBuffer } from "./memory";
import type { Readback } from "./readback";
import type { Message, Session } from "./session";
import type { Steps } from "./steps";
import { integer, type Header } from "./wire";

/** The place of a result: a command of the batch, or that and a command of its program. */
export type Index = number | readonly [number, number];

/** The fields of a command behind its name, not yet checked. */
export type Fields = readonly unknown[];

/** Resolves when a command is done; undefined if it is. */
export type Waiting = Promise<void> | undefined;

interface Result {
  readonly ordinal: number;
  readonly index: Index;
  readonly value: unknown;
}

/** How to undo what a command made, for a late error of an earlier one. */
interface Made {
  readonly ordinal: number;
  readonly undo: () => void;
}

/** A command and its place, for late errors. */
interface Origin {
  readonly command: unknown;
  readonly index: number;
  readonly program: { readonly name: string; readonly place: number } | null;
}

export class RunningBatch {
  readonly results: Result[] = [];
  /** All reads; those not taken are dropped with the batch. */
  readonly readbacks: Readback[] = [];
  inlineBytes = 0;
  inline: Readback | null = null;
  chunkBase = 0;
  program: { readonly name: string; readonly place: number } | null = null;
  private readonly origins: Origin[] = [];
  private readonly made: Made[] = [];
  private executed = 0;

  constructor(
    readonly session: Session,
    readonly message: Message,
    readonly steps: Steps,
  ) {}

  begin(command: unknown, index: number): void {
    this.origins.push({ command, index, program: this.program });
    this.steps.ordinal = this.origins.length - 1;
  }

  origin(ordinal: number): Origin {
    return this.origins[ordinal] ?? { command: "", index: 0, program: null };
  }

  give(index: Index, value: unknown): void {
    this.results.push({ ordinal: this.steps.ordinal, index, value });
  }

  /** Note how to undo the running command. */
  makes(undo: () => void): void {
    this.made.push({ ordinal: this.steps.ordinal, undo });
  }

  /** Undo all commands from `ordinal` on, which failed, with their results. */
  unmakeFrom(ordinal: number): void {
    for (const each of this.made.filter((one) => one.ordinal >= ordinal)) {
      each.undo();
    }
    const kept = this.results.filter((result) => result.ordinal < ordinal);
    this.results.splice(0, this.results.length, ...kept);
  }

  answer(): Header {
    return this.results.length > 0 ? { results: this.results.map(({ index, value }) => [index, value]) } : {};
  }

  /** Count a program's commands: a batch runs no more of them than it could hold itself. */
  count(commands: number, most: number): void {
    this.executed += commands;
    if (this.executed > most) {
      throw inputError(
        `the programs of this batch would run ${this.executed} commands; at most ${most} are run ` +
          "for one batch: send several",
      );
    }
  }

  /** The part of the chunk a command names. */
  window(offset: unknown, nbytes: unknown): Uint8Array<ArrayBuffer> {
    const start = this.chunkBase + integer(offset, "chunk offset");
    const length = integer(nbytes, "byte count");
    const { chunk } = this.message;
    if (start + length > chunk.length) {
      throw protocolError(`command names bytes ${start} to ${start + length} of a chunk of ${chunk.length}`);
    }
    return chunk.subarray(start, start + length);
  }

  /** A window on a buffer, checked. */
  span(
    handle: unknown,
    offset: unknown,
    nbytes: unknown,
  ): { readonly buffer: DeviceBuffer; readonly start: number; readonly length: number } {
    const buffer = this.session.buffer(handle);
    const start = integer(offset, "byte offset");
    const length = integer(nbytes, "byte count");
    if (start + length > buffer.nbytes) {
      throw inputError(
        `bytes ${start} to ${start + length} lie outside buffer ${String(handle)} of ` +
          `${buffer.nbytes} bytes`,
      );
    }
    return { buffer, start, length };
  }
}
