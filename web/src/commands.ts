/** The protocol's commands on the GPU. */

import { Calls, type Counters } from "./calls";
import { inputError, protocolError, TapmlError } from "./errors";
import type { Gpu } from "./gpu";
import { HashCommands } from "./hash_commands";
import type { LibraryStore } from "./library_store";
import type { Memory } from "./memory";
import { workDone } from "./noticed";
import { checkProgram, MAX_PROGRAM_NAME, type ProgramBody } from "./program_body";
import { Readback, StagePool } from "./readback";
import type { Fields, Index, RunningBatch, Waiting } from "./running_batch";
import { BOUNDS, type Send } from "./session";
import { aligned, handleOf, integer, octets, shown, text, type Handle } from "./wire";

/** Reads up to this many bytes travel with the batch's answer; longer ones are streamed. */
const INLINE_READ_BYTES = 1 << 20;
const PIECE_BYTES = 2 << 20;
const MAX_PATTERN_BYTES = 4096;

type Handler = (batch: RunningBatch, index: Index, fields: Fields) => Waiting;

interface Command {
  readonly fields: number;
  readonly run: Handler;
}

export class Commands {
  readonly handlers: ReadonlyMap<string, Command>;
  private readonly pool: StagePool;

  constructor(
    private readonly gpu: Gpu,
    private readonly memory: Memory,
    libraries: LibraryStore,
    counters: Counters,
    private readonly sendFor: (batch: RunningBatch) => Send,
  ) {
    this.pool = new StagePool(gpu.device);
    const calls = new Calls(memory, this.pool, counters);
    const byHash = new HashCommands(memory, libraries);
    const of = (fields: number, run: (...all: Parameters<Handler>) => unknown): Command => ({
      fields,
      run: run as Handler,
    });
    this.handlers = new Map([
      ["allocate", of(2, this.allocate.bind(this))],
      ["free", of(1, this.free.bind(this))],
      ["write", of(4, this.write.bind(this))],
      ["read", of(3, this.read.bind(this))],
      ["fill", of(4, this.fill.bind(this))],
      ["copy", of(5, this.copy.bind(this))],
      ["paste", of(5, byHash.paste.bind(byHash))],
      ["load", of(2, byHash.load.bind(byHash))],
      ["unload", of(1, byHash.unload.bind(byHash))],
      ["call", of(5, calls.call.bind(calls))],
      ["fence", of(0, this.fence.bind(this))],
      ["reset", of(0, this.reset.bind(this))],
      ["program", of(2, this.program.bind(this))],
      ["execute", of(3, this.execute.bind(this))],
      ["forget", of(1, this.forget.bind(this))],
    ]);
  }

  /**
   * Run one command; raises its errors. Before it waits, encoded work is submitted, so that other
   * sessions can run.
   */
  run(batch: RunningBatch, index: Index, command: unknown): Waiting {
    const [name, ...fields] = Array.isArray(command) ? (command as unknown[]) : [command];
    const found = typeof name === "string" ? this.handlers.get(name) : undefined;
    if (found === undefined) {
      const known = [...this.handlers.keys()].join(", ");
      throw protocolError(`unknown command ${shown(name, 60)}; known: ${known}`);
    }
    if (fields.length !== found.fields) {
      throw protocolError(`wrong number of fields in '${String(name)}'`);
    }
    const waiting = found.run(batch, index, fields);
    if (waiting !== undefined) {
      batch.steps.flush();
    }
    return waiting;
  }

  /** Wait for room in the backlog; the deadline is that of its oldest work. */
  async room(batch: RunningBatch): Promise<void> {
    const { session, steps } = batch;
    const { backlog } = session;
    steps.flush();
    while (backlog.isFull) {
      session.begin(`earlier work, ${backlog.oldest},`);
      await backlog.next(this.gpu.device.queue);
    }
    session.running = null;
  }

  private allocate(batch: RunningBatch, _index: Index, [handle, nbytes]: Fields): void {
    const { session } = batch;
    const number = session.newHandle(handle);
    const size = integer(nbytes, "byte count");
    if (session.nbytes + size > BOUNDS.session_bytes) {
      throw inputError(
        `allocating ${size} bytes would bring this session to ${session.nbytes + size}; its ` +
          `bound is ${BOUNDS.session_bytes}`,
      );
    }
    const buffer = this.memory.allocate(batch.steps, size);
    session.buffers.set(number, buffer);
    session.nbytes += size;
    batch.makes(() => {
      if (session.buffers.get(number) === buffer) {
        this.freeBuffer(batch, number);
      }
    });
  }

  private free(batch: RunningBatch, _index: Index, [handle]: Fields): void {
    this.freeBuffer(batch, handleOf(handle));
  }

  private freeBuffer(batch: RunningBatch, number: Handle): void {
    const buffer = batch.session.buffers.get(number);
    if (buffer !== undefined) {
      batch.session.buffers.delete(number);
      batch.session.nbytes -= buffer.nbytes;
      this.memory.free(buffer);
    }
  }

  private write(batch: RunningBatch, _index: Index, [handle, offset, nbytes, chunkOffset]: Fields): void {
    const { buffer, start, length } = batch.span(handle, offset, nbytes);
    this.memory.write(batch.steps, buffer, start, batch.window(chunkOffset, length));
  }

  private read(batch: RunningBatch, index: Index, [handle, offset, nbytes]: Fields): Waiting {
    const { buffer, start, length } = batch.span(handle, offset, nbytes);
    const position = aligned(batch.inlineBytes);
    if (position + length > INLINE_READ_BYTES) {
      return this.stream(batch, index, { buffer, start, length });
    }
    if (length > 0) {
      batch.inline ??= this.readback(batch, INLINE_READ_BYTES);
      batch.inline.add(batch.steps, buffer, start, length, position);
    }
    batch.inlineBytes = position + length;
    batch.give(index, [position, length]);
    return undefined;
  }

  private readback(batch: RunningBatch, nbytes: number): Readback {
    const made = new Readback(this.memory, this.pool, nbytes);
    batch.readbacks.push(made);
    return made;
  }

  /** Send a long read in pieces, reading the next while one is sent. */
  private async stream(
    batch: RunningBatch,
    index: Index,
    { buffer, start, length }: ReturnType<RunningBatch["span"]>,
  ): Promise<void> {
    const { session, message, steps } = batch;
    const send = this.sendFor(batch);
    const ask = (offset: number): { readback: Readback; size: number; ready: Promise<void> } => {
      const size = Math.min(PIECE_BYTES, length - offset);
      const readback = this.readback(batch, size);
      readback.add(steps, buffer, start + offset, size, 0);
      steps.flush();
      const ready = readback.ready();
      // Unhandled if the batch fails before it is awaited.
      ready.catch(() => null);
      return { readback, size, ready };
    };
    let next = ask(0);
    for (let offset = 0; offset < length; offset += PIECE_BYTES) {
      const { readback, size, ready } = next;
      if (offset + PIECE_BYTES < length) {
        next = ask(offset + PIECE_BYTES);
      }
      await steps.settle();
      await ready;
      await session.takeCredit(size);
      if (session.ended !== "") {
        throw new TapmlError("DeviceLostError", "the session ended while a read was streamed");
      }
      session.running?.restart();
      readback.hand((bytes) => {
        send({ type: "data", sequence: message.sequence, index, offset }, bytes);
      });
    }
    batch.give(index, length);
  }

  private fill(batch: RunningBatch, _index: Index, [handle, offset, nbytes, pattern]: Fields): void {
    const { buffer, start, length } = batch.span(handle, offset, nbytes);
    const repeated = octets(pattern, "pattern", MAX_PATTERN_BYTES);
    if (repeated.length === 0) {
      throw protocolError("a fill pattern has at least one byte");
    }
    if (length > 0) {
      this.memory.fill(batch.steps, buffer, start, length, repeated);
    }
  }

  private copy(
    batch: RunningBatch,
    _index: Index,
    [source, sourceOffset, target, targetOffset, nbytes]: Fields,
  ): void {
    const from = batch.span(source, sourceOffset, nbytes);
    const into = batch.span(target, targetOffset, nbytes);
    const { length } = from;
    if (from.buffer === into.buffer && from.start < into.start + length && into.start < from.start + length) {
      throw inputError("a copy within one buffer must not overlap itself");
    }
    if (length > 0) {
      this.memory.copy(batch.steps, from.buffer, from.start, into.buffer, into.start, length);
    }
  }

  private async fence(batch: RunningBatch, index: Index): Promise<void> {
    await batch.steps.settle();
    await workDone(this.gpu.device.queue);
    batch.give(index, true);
  }

  private async reset(batch: RunningBatch): Promise<void> {
    // Earlier work ends here; its errors are obsolete.
    await batch.steps.settle().catch(() => null);
    await workDone(this.gpu.device.queue);
    batch.session.failure = null;
  }

  private program(batch: RunningBatch, _index: Index, [name, commands]: Fields): void {
    const { programs } = batch.session;
    const body = checkProgram(name, commands, BOUNDS.program_commands);
    if (programs.has(body.name)) {
      throw protocolError(`program '${body.name}' is there already; forget it first`);
    }
    if (programs.size >= BOUNDS.programs) {
      throw inputError(`this session already holds ${BOUNDS.programs} programs; forget one`);
    }
    const held = [...programs.values()].reduce((sum, each) => sum + each.nbytes, body.nbytes);
    if (held > BOUNDS.program_bytes) {
      throw inputError(`programs of ${held} bytes; a session holds at most ${BOUNDS.program_bytes}`);
    }
    programs.set(body.name, body);
    batch.makes(() => programs.delete(body.name));
  }

  private forget(batch: RunningBatch, _index: Index, [name]: Fields): void {
    batch.session.programs.delete(text(name, "program name", MAX_PROGRAM_NAME));
  }

  private execute(batch: RunningBatch, index: Index, [name, given, chunkOffset]: Fields): Waiting {
    const called = text(name, "program name", MAX_PROGRAM_NAME);
    const body = batch.session.programs.get(called);
    if (body === undefined) {
      throw inputError(
        `no program has the name '${called}': it was forgotten, or recording it failed or was ` +
          "skipped on a poisoned session",
      );
    }
    const values = body.take(given);
    batch.count(body.commands.length, BOUNDS.commands);
    batch.chunkBase = integer(chunkOffset, "chunk offset");
    return this.proceed(batch, typeof index === "number" ? index : index[0], body, values, 0);
  }

  /** Run a program from a place on, synchronously until a command waits. */
  private proceed(
    batch: RunningBatch,
    outer: number,
    body: ProgramBody,
    values: readonly number[],
    from: number,
  ): Waiting {
    const { session } = batch;
    for (let place = from; place < body.commands.length; place += 1) {
      if (session.backlog.isFull) {
        return this.room(batch).then(() => this.goOn(batch, outer, body, values, place));
      }
      const command = body.command(place, values);
      batch.program = { name: body.name, place };
      batch.begin(command, outer);
      session.begin(command);
      if (session.ended !== "") {
        throw new TapmlError("DeviceLostError", "the session ended while a program ran");
      }
      if (batch.message.sequence <= session.cancelThrough) {
        throw new TapmlError("RemoteError", "cancelled by the client before it ran");
      }
      const waiting = this.run(batch, [outer, place], command);
      if (waiting !== undefined) {
        return waiting.then(() => this.goOn(batch, outer, body, values, place + 1));
      }
    }
    batch.program = null;
    batch.chunkBase = 0;
    return undefined;
  }

  private goOn(...rest: Parameters<Commands["proceed"]>): Waiting {
    try {
      return this.proceed(...rest);
    } finally {
      // Other sessions may run before the batch continues, and the encoder is the device's.
      rest[0].steps.flush();
    }
  }
}
