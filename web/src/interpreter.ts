/** Runs batches in order, continues after errors, and answers each batch once. */

import { messageOf, TapmlError } from "./errors";
import { Commands } from "./commands";
import type { Counters } from "./calls";
import { failureToWire } from "./failures";
import type { Gpu } from "./gpu";
import { LibraryStore } from "./library_store";
import { Memory } from "./memory";
import { RunningBatch } from "./running_batch";
import { type Message, type Send, type Session } from "./session";
import { StepError, Steps } from "./steps";
import type { Header } from "./wire";

/** These run after a failure, too: a client must always be able to free memory. */
const ALWAYS: ReadonlySet<string> = new Set(["forget", "free", "unload", "reset"]);
const LOAD_FACTOR = 10;

export class Interpreter {
  readonly memory: Memory;
  private readonly libraries: LibraryStore;
  private readonly commands: Commands;
  private readonly sends = new WeakMap<RunningBatch, Send>();

  constructor(
    private readonly gpu: Gpu,
    counters: Counters,
    libraryBytes: number,
    private readonly report: (failure: Header) => void,
  ) {
    this.memory = new Memory(gpu.device);
    this.libraries = new LibraryStore(gpu, this.memory, libraryBytes);
    this.commands = new Commands(gpu, this.memory, this.libraries, counters, (batch) => {
      const send = this.sends.get(batch);
      if (send === undefined) {
        throw new TapmlError("DeviceLostError", "the session's connection is gone");
      }
      return send;
    });
  }

  /** Run a batch and answer it. */
  async run(session: Session, message: Message, send: Send): Promise<void> {
    const steps = new Steps(this.gpu.device, () => session.backlog.commands);
    steps.submitted = (stage, commands) => session.submitted(stage, commands);
    const batch = new RunningBatch(session, message, steps);
    this.sends.set(batch, send);
    try {
      await this.runAll(batch, send);
    } finally {
      for (const readback of batch.readbacks) {
        readback.drop();
      }
    }
  }

  private async runAll(batch: RunningBatch, send: Send): Promise<void> {
    const { session, message } = batch;
    for (const [index, command] of message.commands.entries()) {
      const name: unknown = Array.isArray(command) ? command[0] : undefined;
      const always = typeof name === "string" && ALWAYS.has(name);
      if (session.failure !== null && !always && name !== "load") {
        continue;
      }
      if (session.backlog.isFull) {
        await this.commands.room(batch);
        if (session.ended !== "") {
          return;
        }
      }
      batch.begin(command, index);
      session.begin(command, name === "load" ? LOAD_FACTOR : 1);
      try {
        if (message.sequence <= session.cancelThrough && !always) {
          throw new TapmlError("RemoteError", "cancelled by the client before it ran");
        }
        const waiting = this.commands.run(batch, index, command);
        if (waiting !== undefined) {
          await waiting;
        }
      } catch (error) {
        if (name === "load") {
          // A kernel that does not build is the caller's to handle, and no other work's.
          const failure = failureToWire(error, command, index);
          batch.give(index, failure);
          this.report(failure);
        } else {
          await this.fail(batch, error);
        }
      }
      session.running = null;
      if (session.ended !== "") {
        return;
      }
    }
    await this.answer(batch, send);
  }

  release(session: Session, why: string): void {
    session.release(this.memory, (built) => this.libraries.release(built), why);
  }

  /** Poison the stream with its first error; a late error may belong to an earlier command. */
  private async fail(batch: RunningBatch, error: unknown): Promise<void> {
    const { session, steps } = batch;
    let first = error;
    let ordinal = error instanceof StepError ? error.ordinal : steps.ordinal;
    try {
      await steps.settle();
    } catch (late) {
      if (late instanceof StepError && late.ordinal < ordinal) {
        first = late;
        ordinal = late.ordinal;
      }
    }
    const { command, index, program } = batch.origin(ordinal);
    batch.unmakeFrom(ordinal);
    if (session.failure === null) {
      const failure = failureToWire(first, command, index);
      if (program !== null) {
        failure["program"] = program.name;
        failure["place"] = program.place;
        failure["command"] =
          `command ${program.place} of program '${program.name}': ${String(failure["command"])}`;
      }
      session.failure = failure;
      this.report(failure);
    }
    batch.program = null;
    batch.chunkBase = 0;
  }

  private async answer(batch: RunningBatch, send: Send): Promise<void> {
    const { session, message, steps } = batch;
    session.begin("the answer to a batch");
    steps.flush();
    let chunk: Uint8Array<ArrayBuffer> = new Uint8Array(0);
    const inline = batch.inline?.take();
    inline?.catch(() => null);
    try {
      await steps.settle();
      chunk = (await inline) ?? chunk;
    } catch (error) {
      await this.fail(batch, error);
    }
    session.running = null;
    if (session.ended !== "") {
      return;
    }
    session.answered = message.sequence;
    const header: Header = {
      type: "done",
      sequence: message.sequence,
      ...batch.answer(),
      ...(session.failure === null ? {} : { error: session.failure }),
    };
    try {
      send(header, batch.results.length > 0 ? chunk : new Uint8Array(0));
    } catch (error) {
      // The results do not fit into a header: the session continues without them.
      if (!(error instanceof TapmlError) || error.kind !== "ProtocolError") {
        throw error;
      }
      const told = failureToWire(error, "the answer to a batch", message.commands.length);
      session.failure ??= told;
      send({ type: "done", sequence: message.sequence, error: told });
      this.report({ ...told, message: messageOf(error) });
    }
  }
}
