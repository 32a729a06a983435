/** What one client holds on this device: handles, streams, credit, the batches it has sent. */

import { Backlog } from "./backlog";
import { inputError, protocolError } from "./errors";
import { renderCommand } from "./failures";
import type { GpuClock } from "./gpu_clock";
import type { BuiltLibrary, Upload } from "./library_store";
import type { RecordedCall } from "./loaded_library";
import type { DeviceBuffer, Memory } from "./memory";
import type { ProgramBody } from "./program_body";
import { handleOf, shown, type Handle, type Header } from "./wire";

/** What this device grants; every size and count a peer can make it hold. */
export const BOUNDS = {
  chunk_bytes: 4 << 20,
  commands: 4096,
  unanswered: 64,
  upload_window: 16 << 20,
  download_window: 16 << 20,
  handles: 65536,
  session_bytes: 16 * 2 ** 30,
  library_bytes: 256 << 20,
  held_library_bytes: 512 << 20,
  sessions: 8,
  streams: 64,
  programs: 64,
  program_commands: 1024,
  program_bytes: 4 << 20,
} as const;

const MAX_RECORDINGS = 64;

/** A batch as it came. */
export interface Message {
  readonly sequence: number;
  readonly stream: number;
  readonly commands: readonly unknown[];
  readonly chunk: Uint8Array<ArrayBuffer>;
  /** What was asked of blobs before it; null where that is answered. */
  readonly after: Promise<void> | null;
}

export interface Recording {
  readonly library: Handle;
  readonly built: BuiltLibrary;
  readonly call: RecordedCall;
  readonly buffers: readonly (readonly [Handle, DeviceBuffer])[];
}

/** What runs now, for pongs and for the deadline. */
export class Running {
  since = performance.now();
  private others: number;

  /** `given` is a command as it came, or words. */
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

  /** Begin anew to count: what went before was no work of the session's. */
  restart(): void {
    this.since = performance.now();
    this.others = this.session.othersMilliseconds();
  }

  /** Milliseconds it has taken, but for those in which the GPU was another session's. */
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
  readonly recordings = new Map<Handle, Recording>();
  readonly programs = new Map<string, ProgramBody>();
  readonly uploads = new Map<string, Upload>();
  /** What is attached, by hash: bytes that nobody changes. */
  readonly blobs = new Map<string, Uint8Array<ArrayBuffer>>();
  /** Per poisoned stream the first error, as it goes over the wire. */
  readonly failures = new Map<number, Header>();
  nbytes = 0;
  answered = 0;
  heard = performance.now();
  cancelThrough = -1;
  running: Running | null = null;
  /** Whether a read waits for its client: no kernel is to blame for how long that takes. */
  waitsForCredit = false;
  readonly backlog = new Backlog();
  /** Why it has ended; empty while it lives. */
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

  /** A command, or what words say, begins. */
  begin(command: unknown, deadlineFactor = 1): void {
    this.running = new Running(command, this, deadlineFactor);
  }

  /** Milliseconds for which the GPU has done the work of others so far. */
  othersMilliseconds(): number {
    return this.clock?.others(this) ?? 0;
  }

  /** So many commands of this session were submitted to the GPU. */
  submitted(stage: string, commands: number): void {
    if (this.clock !== null) {
      this.backlog.submitted(stage, commands, this.clock.submitted(this));
    }
  }

  /** Milliseconds for which the GPU has worked for it since it ended. */
  heldSinceEnd(): number {
    return this.ended === "" ? 0 : (this.clock?.own(this) ?? 0) - this.ownAtEnd;
  }

  /** The memory behind a handle; raises an InputError where there is none. */
  buffer(handle: unknown): DeviceBuffer {
    const exact = typeof handle === "bigint" && handle >= 0n ? handleOf(handle) : handle;
    const found = this.buffers.get(exact as Handle);
    if (found === undefined) {
      throw inputError(
        `no buffer has the handle ${shown(handle, 40)}: it was freed, or its allocation failed ` +
          "or was skipped on a poisoned stream",
      );
    }
    return found;
  }

  /** Check a handle the client has chosen. */
  newHandle(handle: unknown): Handle {
    const number = handleOf(handle);
    const { buffers, libraries, recordings } = this;
    if (buffers.has(number) || libraries.has(number) || recordings.has(number)) {
      throw protocolError(`handle ${number} is in use`);
    }
    if (buffers.size + libraries.size + recordings.size >= BOUNDS.handles) {
      throw inputError(`this session already holds ${BOUNDS.handles} handles`);
    }
    return number;
  }

  newRecording(): void {
    if (this.recordings.size >= MAX_RECORDINGS) {
      throw inputError(`this session already holds ${MAX_RECORDINGS} recorded calls; free one`);
    }
  }

  /** Take what the client allows to be sent. */
  giveCredit(bytes: number): void {
    this.credit = Math.min(this.credit + bytes, BOUNDS.download_window);
    this.wakeForCredit?.();
  }

  /** Wait until so many bytes may be sent, and use that credit up. */
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

  /** Free everything; whoever waits for credit is woken. */
  release(memory: Memory, releaseLibrary: (built: BuiltLibrary) => void, why: string): void {
    this.ended = this.ended || why;
    this.ownAtEnd = this.clock?.own(this) ?? 0;
    this.backlog.close();
    this.wakeForCredit?.();
    for (const recording of this.recordings.values()) {
      recording.call.bound.launches.close();
    }
    for (const buffer of this.buffers.values()) {
      memory.free(buffer);
    }
    for (const built of this.libraries.values()) {
      releaseLibrary(built);
    }
    this.recordings.clear();
    this.buffers.clear();
    this.libraries.clear();
    this.programs.clear();
    this.uploads.clear();
    this.nbytes = 0;
  }
}
