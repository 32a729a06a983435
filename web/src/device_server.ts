/** Serves sessions on one open GPU: hello, ping, cancel, batches, credit, deadlines, ends. */

import { BlobRequests } from "./blob_requests";
import type { BlobStore } from "./blob_store";
import type { Counters } from "./calls";
import { messageOf, protocolError, TapmlError } from "./errors";
import { failureToWire } from "./failures";
import type { Gpu } from "./gpu";
import { GpuClock } from "./gpu_clock";
import { Interpreter } from "./interpreter";
import { BOUNDS, checkWindow, Session, type Message, type Send } from "./session";
import { array, hex, integer, MAX_EXACT, octets, shown, VERSION, type Header } from "./wire";

const FEATURES = ["blobs"];
const KERNEL_DEADLINE_SECONDS = 60;
const SILENCE_SECONDS = 60;
/** Grace beyond a kernel's deadline before the GPU is given up. */
const HELD_SECONDS = 2;
const LOOK_MILLISECONDS = 250;
const SERVER = "tapml browser 0.1.0";

/** One of a session's connections. */
export interface Leg {
  send(header: Header, chunk?: Uint8Array): void;
  close(code: number, reason: string): void;
}

interface Served {
  readonly session: Session;
  readonly requests: BlobRequests;
  readonly control: Leg;
  data: Leg | null;
  readonly queue: Message[];
  queuedBytes: number;
  accepted: number;
  working: boolean;
}

export class DeviceServer {
  readonly counters: Counters = { kernels: 0, calls: 0, lastCall: "" };
  readonly epoch = crypto.getRandomValues(new Uint8Array(8));
  private readonly interpreter: Interpreter;
  private readonly served = new Map<string, Served>();
  private readonly clock: GpuClock;
  private readonly timer: ReturnType<typeof setInterval>;

  constructor(
    readonly gpu: Gpu,
    readonly blobs: BlobStore,
    private readonly report: (failure: Header) => void,
    private readonly hung: (error: TapmlError) => void,
  ) {
    this.interpreter = new Interpreter(gpu, this.counters, blobs.libraryBytes, report);
    this.clock = new GpuClock(gpu.device);
    this.timer = setInterval(() => this.look(), LOOK_MILLISECONDS);
  }

  get sessions(): number {
    return this.served.size;
  }

  get deviceBytes(): number {
    return this.interpreter.memory.allocated;
  }

  /** The running command of any session. */
  get running(): string {
    for (const { session } of this.served.values()) {
      if (session.running !== null) {
        return session.running.command;
      }
    }
    return "";
  }

  /**
   * Take a message of a control connection; returns its session's token, if any. The lease's `token`
   * authorizes a hello, its `identity` names the client.
   */
  control(
    leg: Leg,
    header: Header,
    lease: { readonly token: string; readonly identity: string },
    before: string,
  ): string {
    switch (header["type"]) {
      case "hello":
        return this.hello(leg, header, lease, before);
      case "ping":
        this.ping(leg, header, this.of(header));
        return before;
      case "cancel": {
        const { session } = this.of(header);
        session.heard = performance.now();
        session.cancelThrough = integer(header["sequence"], "sequence");
        return before;
      }
      case "goodbye":
        this.end(before, "closed by the client");
        return "";
      default:
        throw protocolError(`unknown message type ${shown(header["type"], 60)}`);
    }
  }

  /** Take a message of a data connection; `token` is its session's, or empty before the first. */
  data(leg: Leg, header: Header, chunk: Uint8Array<ArrayBuffer>, token: string): string {
    if (hex(octets(header["epoch"], "epoch", 64)) !== hex(this.epoch)) {
      throw new TapmlError(
        "DeviceRestartedError",
        "this device was opened after the session was: its handles mean nothing here; open a " +
          "new session",
      );
    }
    const named = hex(octets(header["session"], "session", 64));
    const served = this.served.get(named);
    if (served === undefined || (token !== "" && token !== named)) {
      throw new TapmlError("DeviceLostError", "the session has ended: it was closed or went silent");
    }
    if (served.data === null) {
      served.data = leg;
    } else if (served.data !== leg) {
      throw protocolError("this session has a data connection already");
    }
    served.session.heard = performance.now();
    switch (header["type"]) {
      case "batch":
        this.accept(served, header, chunk);
        break;
      case "blob":
        served.requests.take(header, chunk);
        break;
      case "credit":
        served.session.giveCredit(integer(header["bytes"], "credit"));
        break;
      case "goodbye":
        this.end(named, "closed by the client");
        break;
      default:
        throw protocolError(`unknown message type ${shown(header["type"], 60)}`);
    }
    return named;
  }

  /** End a session: free its objects, close its connections. */
  end(token: string, why: string, error: TapmlError | null = null): void {
    const served = this.served.get(token);
    if (served === undefined) {
      return;
    }
    this.served.delete(token);
    served.requests.close();
    this.interpreter.release(served.session, why);
    if (error !== null) {
      served.control.send({ type: "event", error: failureToWire(error) });
    }
    for (const leg of [served.control, served.data]) {
      leg?.close(error === null ? 1000 : 1001, why);
    }
  }

  /** End every session, with an error if given. */
  close(why: string, error: TapmlError | null = null): void {
    clearInterval(this.timer);
    for (const token of [...this.served.keys()]) {
      this.end(token, why, error);
    }
  }

  private of(header: Header): Served {
    const served = this.served.get(hex(octets(header["session"], "session", 64)));
    if (served === undefined) {
      throw new TapmlError("DeviceLostError", "the session has ended: it was closed or went silent");
    }
    return served;
  }

  private hello(
    leg: Leg,
    header: Header,
    lease: { readonly token: string; readonly identity: string },
    before: string,
  ): string {
    if (header["lease"] !== lease.token) {
      throw new TapmlError(
        "SetupError",
        "this device is lent to another client: the hello lacks the lease's token",
      );
    }
    if (!array(header["versions"], "versions").includes(VERSION)) {
      throw protocolError(
        `this device speaks protocol version ${VERSION}, the client ` +
          `${shown(header["versions"])}; bring both to the same release of tapml`,
      );
    }
    this.end(before, "its client said hello again");
    if (this.served.size >= BOUNDS.sessions) {
      throw new TapmlError("SetupError", `all ${BOUNDS.sessions} sessions of this page are taken`);
    }
    const asked = header["kernel_deadline"];
    const deadline = typeof asked === "number" && asked > 0 ? asked : KERNEL_DEADLINE_SECONDS;
    const session = new Session(
      integer(header["download_window"], "download window"),
      Math.min(deadline, KERNEL_DEADLINE_SECONDS),
      this.clock,
    );
    const token = hex(session.token);
    const requests = new BlobRequests(this.blobs, session, lease.identity, (reply) => served.data?.send(reply));
    const served: Served = {
      session,
      requests,
      control: leg,
      data: null,
      queue: [],
      queuedBytes: 0,
      accepted: 0,
      working: false,
    };
    this.served.set(token, served);
    leg.send({
      type: "welcome",
      version: VERSION,
      features: FEATURES,
      server: SERVER,
      device: this.gpu.description,
      bounds: { ...BOUNDS, library_bytes: this.blobs.libraryBytes },
      epoch: this.epoch,
      session: session.token,
      data_address: "/data",
      kernel_deadline: session.kernelDeadline,
      silence_seconds: SILENCE_SECONDS,
    });
    return token;
  }

  private ping(leg: Leg, header: Header, served: Served): void {
    const { session } = served;
    session.heard = performance.now();
    const { running } = session;
    leg.send({
      type: "pong",
      sequence: integer(header["sequence"], "sequence"),
      answered: session.answered,
      sessions: this.served.size,
      device_bytes: this.deviceBytes,
      ...(running === null
        ? {}
        : { busy_seconds: (performance.now() - running.since) / 1000, command: running.command }),
    });
  }

  private accept(served: Served, header: Header, chunk: Uint8Array<ArrayBuffer>): void {
    const sequence = integer(header["sequence"], "sequence", MAX_EXACT);
    if (sequence <= served.accepted) {
      throw protocolError(
        `a batch of sequence ${sequence} after one of ${served.accepted}; the sequence rises`,
      );
    }
    const message: Message = {
      sequence,
      commands: array(header["commands"], "commands", BOUNDS.commands),
      chunk,
      after: served.requests.settled,
    };
    checkWindow("batches", served.queue.length, served.queuedBytes + chunk.length);
    served.accepted = sequence;
    served.queue.push(message);
    served.queuedBytes += chunk.length;
    if (!served.working) {
      void this.work(served);
    }
  }

  /** Run a session's batches in order, interleaved with those of other sessions. */
  private async work(served: Served): Promise<void> {
    const { session } = served;
    const send: Send = (header, chunk) => served.data?.send(header, chunk);
    served.working = true;
    let message = served.queue[0];
    while (message !== undefined && session.ended === "") {
      try {
        if (message.after !== null) {
          await message.after;
          if (this.served.get(hex(session.token)) !== served) {
            // The session ended meanwhile: nothing would free what its commands make.
            break;
          }
        }
        await this.interpreter.run(session, message, send);
      } catch (error) {
        // A bug of the page ends this session only, and is reported.
        const failure = new TapmlError("DeviceLostError", `the page failed: ${messageOf(error)}`);
        this.report(failureToWire(error, "a batch"));
        this.end(hex(session.token), "the page failed", failure);
        break;
      }
      served.queuedBytes -= message.chunk.length;
      served.queue.shift();
      message = served.queue[0];
    }
    served.working = false;
  }

  /** Check deadlines and silence. */
  private look(): void {
    const now = performance.now();
    for (const [token, { session }] of [...this.served]) {
      const { running } = session;
      if (session.waitsForCredit) {
        running?.restart();
      }
      if (running !== null && running.taken > running.allowed) {
        const error = new TapmlError(
          "KernelTimeoutError",
          `${running.command} ran longer than ${running.allowed / 1000} s in the browser, which ` +
            "cannot stop a kernel: close the page if the device does not come back by itself",
        );
        this.report(failureToWire(error, running.command));
        this.end(token, "a kernel was over its deadline", error);
      } else if (now - session.heard > SILENCE_SECONDS * 1000) {
        this.end(token, `its client was silent for ${SILENCE_SECONDS} s`);
      }
    }
    this.watchHeld();
  }

  /**
   * A browser cannot stop a kernel. If the work of an ended session holds the GPU for longer than a
   * kernel's deadline, give the GPU up: its own deadline if no other session is here, else the longest.
   */
  private watchHeld(): void {
    const { clock } = this;
    const { owner } = clock;
    if (!(owner instanceof Session) || owner.ended === "") {
      return;
    }
    const alone = this.served.size === 0;
    const allowed = alone ? owner.kernelDeadline : KERNEL_DEADLINE_SECONDS;
    const held = Math.max(clock.headMilliseconds, owner.heldSinceEnd()) / 1000;
    if (held < allowed + HELD_SECONDS) {
      return;
    }
    const lost = new TapmlError(
      "DeviceLostError",
      `work of another session, which has ended, has held the GPU for ${Math.round(held)} s and ` +
        "a browser cannot stop it: the page gives the GPU up, with all that is on it, and opens it " +
        "again; connect again",
    );
    this.report(failureToWire(lost));
    for (const token of [...this.served.keys()]) {
      this.end(token, "the GPU was given up", lost);
    }
    clearInterval(this.timer);
    this.hung(lost);
  }
}
