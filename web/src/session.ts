/** The state of one client on this device: handles, credit, its first error. */

import { Backlog } from "./backlog";
import { inputError, protocolError } from "./errors";
import { renderCommand } from "./failures";
import type { GpuClock } from "./gpu_clock";
import type { BuiltLibrary } from "./library_store";
import type { DeviceBuffer, Memory } from "./memory";
import type { ProgramBody } from "./program_body";
import { handleOf, shown, type Handle, type Header } from "./wire";

/** Bounds on every size and count that a peer can make this device hold. */
export const BOUNDS = {
  chunk_bytes: 4 << 20,
  commands: 4096,
  unanswered: 64,
  upload_window: 16 << 20,
  download_window: 16 << 20,
  handles: 65536,
  session_bytes: 16 * 2 ** 30,
  library_bytes: 256 << 20,
  sessions: 8,
  programs: 64,
  program_commands: 1024,
  program_bytes: 4 << 20,
} as const;

/** Raise a ProtocolError if a client has more unanswered messages or bytes than allowed. */
export function checkWindow(what: string, count: number, nbytes: number): void {
  if (count >= BOUNDS.unanswered) {
    throw protocolError(`${count} ${what} wait for an answer; at most ${BOUNDS.unanswered} may`);
  }
  if (nbytes > BOUNDS.upload_window) {
    throw protocolError(`${nbytes} bytes wait for an answer; at most ${BOUNDS.upload_window} may`);
  }
}

/** A batch as it came. */
export interface Message {
  readonly sequence: number;
  readonly commands: readonly unknown[];
  readonly chunk: Uint8Array<ArrayBuffer>;
  /** Resolves once the blob requests before it are answered; null if they are. */
  readonly after: Promise<void> | null;
}

/** The running command, for pongs and for the deadline. */
export class Running {
  since = performance.now();
  private others: number;

  /** `given` is a command as received, or a description. */
  constructor(
    private readonly given: unknown,
    private readonly session: Session,
    private readonly deadlineFactor: number,
  ) {
    this.others = session.othersMilliseconds();
  }

  get command(): string {
    return renderCommand(this.given);
  }

  /** Milliseconds it may take. */
  get allowed(): number {
    return this.session.kernelDeadline * 1000 * this.deadlineFactor;
  }

  /** Restart the clock: the time before was not the session's own work. */
  restart(): void {
    this.since = performance.now();
    this.others = this.session.othersMilliseconds();
  }

  /** Milliseconds taken, without those in which other sessions had the GPU. */
  get taken(): number {
    return performance.now() - this.since - (this.session.othersMilliseconds() - this.others);
  }
}

/** Sends a header and a chunk on a session's data connection. */
export type Send = (header: Header, chunk?: Uint8Array) => void;

export class Session {
  readonly token = crypto.getRandomValues(new Uint8Array(16));
  readonly buffers = new Map<Handle, DeviceBuffer>();
  readonly libraries = new Map<Handle, BuiltLibrary>();
  readonly programs = new Map<string, ProgramBody>();
  /** Attached blobs by hash; their bytes never change. */
  readonly blobs = new Map<string, Uint8Array<ArrayBuffer>>();
  /** The first error since the last reset, in wire form. */
  failure: Header | null = null;
  nbytes = 0;
  answered = 0;
  heard = performance.now();
  cancelThrough = -1;
  running: Running | null = null;
  /** Whether a read waits for its client's credit, which no kernel is to blame for. */
  waitsForCredit = false;
  readonly backlog = new Backlog();
  /** Why it ended; empty while it runs. */
  ended = "";
  private ownAtEnd = 0;
  private credit: number;
  private wakeForCredit: (() => void) | null = null;

  constructor(
    downloadWindow: number,
    readonly kernelDeadline: number,
    private readonly clock: GpuClock | null = null,
  ) {
    this.credit = Math.min(downloadWindow, BOUNDS.download_window);
  }

  begin(command: unknown, deadlineFactor = 1): void {
    this.running = new Running(command, this, deadlineFactor);
  }

  othersMilliseconds(): number {
    return this.clock?.others(this) ?? 0;
  }

  submitted(stage: string, commands: number): void {
    if (this.clock !== null) {
      this.backlog.submitted(stage, commands, this.clock.submitted(this));
    }
  }

  /** Milliseconds of GPU work for this session after its end. */
  heldSinceEnd(): number {
    return this.ended === "" ? 0 : (this.clock?.own(this) ?? 0) - this.ownAtEnd;
  }

  /** The buffer of a handle; raises an InputError if there is none. */
  buffer(handle: unknown): DeviceBuffer {
    const exact = typeof handle === "bigint" && handle >= 0n ? handleOf(handle) : handle;
    const found = this.buffers.get(exact as Handle);
    if (found === undefined) {
      throw inputError(
        `no buffer has the handle ${shown(handle, 40)}: it was freed, or its allocation failed ` +
          "or was skipped on a poisoned session",
      );
    }
    return found;
  }

  /** Check a new handle, which the client chooses. */
  newHandle(handle: unknown): Handle {
    const number = handleOf(handle);
    const { buffers, libraries } = this;
    if (buffers.has(number) || libraries.has(number)) {
      throw protocolError(`handle ${number} is in use`);
    }
    if (buffers.size + libraries.size >= BOUNDS.handles) {
      throw inputError(`this session already holds ${BOUNDS.handles} handles`);
    }
    return number;
  }

  giveCredit(bytes: number): void {
    this.credit = Math.min(this.credit + bytes, BOUNDS.download_window);
    this.wakeForCredit?.();
  }

  /** Wait until `bytes` may be sent, and spend that credit. */
  async takeCredit(bytes: number): Promise<void> {
    this.waitsForCredit = true;
    while (this.credit < bytes && this.ended === "") {
      await new Promise<void>((resolve) => {
        this.wakeForCredit = resolve;
      });
    }
    this.waitsForCredit = false;
    this.credit -= bytes;
  }

  /** Free everything; wakes reads that wait for credit. */
  release(memory: Memory, releaseLibrary: (built: BuiltLibrary) => void, why: string): void {
    this.ended = this.ended || why;
    this.ownAtEnd = this.clock?.own(this) ?? 0;
    this.backlog.close();
    this.wakeForCredit?.();
    for (const buffer of this.buffers.values()) {
      memory.free(buffer);
    }
    for (const built of this.libraries.values()) {
      releaseLibrary(built);
    }
    this.buffers.clear();
    this.libraries.clear();
    this.programs.clear();
    this.nbytes = 0;
  }
}
