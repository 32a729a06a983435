/** The `blob` messages of one session: requests, replies, and the blobs that its batches may read. */

import type { Arrival, BlobStore } from "./blob_store";
import { inputError, protocolError, TapmlError } from "./errors";
import { failureToWire } from "./failures";
import { checkWindow, type Session } from "./session";
import { array, integer, MAX_EXACT, shown, text, type Header } from "./wire";

const MAX_ARRIVALS = 4;
const MAX_DIGESTS = 4096;
const DIGEST = /^[0-9a-f]{64}$/;

export class BlobRequests {
  private readonly arrivals = new Map<string, Arrival>();
  private readonly bound: number;
  private waiting = 0;
  private waitingBytes = 0;
  private closed = false;
  private last = Promise.resolve();

  /** `owner` identifies the client: a session sees its owner's blobs only. */
  constructor(
    private readonly store: BlobStore,
    private readonly session: Session,
    private readonly owner: string,
    private readonly send: (header: Header) => void,
  ) {
    this.bound = store.sessionBytes;
  }

  /** Resolves once all requests so far are answered; null if none waits. */
  get settled(): Promise<void> | null {
    return this.waiting > 0 ? this.last : null;
  }

  /** Take a message; replies come in the order of requests. */
  take(header: Header, chunk: Uint8Array): void {
    const sequence = integer(header["sequence"], "sequence", MAX_EXACT);
    checkWindow("messages", this.waiting, this.waitingBytes + chunk.length);
    this.waiting += 1;
    this.waitingBytes += chunk.length;
    this.last = this.last.then(async () => {
      let reply: Header;
      try {
        reply = { type: "blob-done", sequence, value: await this.handle(header, chunk) };
      } catch (error) {
        reply = { type: "error", sequence, error: failureToWire(error) };
      }
      this.waiting -= 1;
      this.waitingBytes -= chunk.length;
      if (!this.closed) {
        this.send(reply);
      }
    });
  }

  /** End the session: abandon its uploads, detach its blobs. */
  close(): void {
    this.closed = true;
    for (const arrival of this.arrivals.values()) {
      this.store.abandon(arrival);
    }
    this.arrivals.clear();
    for (const digest of this.session.blobs.keys()) {
      this.store.detach(this.session, digest);
    }
    this.session.blobs.clear();
  }

  private async handle(header: Header, chunk: Uint8Array): Promise<unknown> {
    if (this.closed) {
      throw new TapmlError("DeviceLostError", "the session has ended");
    }
    const operation = text(header["operation"], "operation", 16);
    if (operation === "holds") {
      const asked = array(header["digests"], "digests", MAX_DIGESTS);
      return asked.map((digest) => this.store.holds(this.owner, digestOf(digest)));
    }
    const digest = digestOf(header["digest"]);
    switch (operation) {
      case "put":
        return this.put(
          digest,
          integer(header["total"], "blob size"),
          integer(header["offset"], "offset"),
          chunk,
        );
      case "attach":
        return this.attach(digest);
      case "detach":
        this.store.detach(this.session, digest);
        return this.session.blobs.delete(digest);
      default:
        throw protocolError(
          `unknown blob operation ${shown(operation, 60)}; known: holds, put, attach, detach`,
        );
    }
  }

  private async put(digest: string, total: number, offset: number, piece: Uint8Array): Promise<boolean> {
    if (offset === 0) {
      this.begin(digest, total);
    }
    const arrival = this.arrivals.get(digest);
    if (arrival?.bytes.length !== total) {
      throw protocolError(
        `a piece at ${offset} of a blob ${digest.slice(0, 12)} of ${total} bytes that is not on ` +
          "its way; begin at 0",
      );
    }
    try {
      if (!arrival.take(offset, piece)) {
        return false;
      }
      await arrival.verify();
    } catch (error) {
      this.drop(digest);
      throw error;
    }
    this.arrivals.delete(digest);
    this.store.keep(arrival);
    return true;
  }

  private begin(digest: string, total: number): void {
    this.drop(digest);
    if (total === 0) {
      throw protocolError("a blob has at least one byte");
    }
    if (this.arrivals.size >= MAX_ARRIVALS) {
      throw protocolError(`more than ${MAX_ARRIVALS} blobs are on their way at once`);
    }
    const taken = this.taken();
    if (taken + total > this.bound) {
      throw inputError(
        `a blob of ${total} bytes beside ${taken} on their way or attached; a session may have ` +
          `${this.bound}`,
      );
    }
    this.arrivals.set(digest, this.store.begin(this.owner, digest, total));
  }

  /** Bytes of the store that nobody else can have because of this session. */
  private taken(): number {
    const arriving = [...this.arrivals.values()].reduce((sum, each) => sum + each.bytes.length, 0);
    return [...this.session.blobs.values()].reduce((sum, each) => sum + each.length, arriving);
  }

  private drop(digest: string): void {
    const arrival = this.arrivals.get(digest);
    if (arrival !== undefined) {
      this.arrivals.delete(digest);
      this.store.abandon(arrival);
    }
  }

  private async attach(digest: string): Promise<boolean> {
    if (this.session.blobs.has(digest)) {
      return true;
    }
    const bytes = await this.store.attach(this.session, this.owner, digest);
    if (bytes === null) {
      return false;
    }
    const attached = this.taken() + bytes.length;
    // The session may have ended while the disk was read.
    if (this.isClosed() || attached > this.bound) {
      this.store.detach(this.session, digest);
      throw inputError(
        `with a blob of ${bytes.length} bytes this session would have ${attached} attached or ` +
          `on their way; its bound is ${this.bound}: detach what it is done with`,
      );
    }
    this.session.blobs.set(digest, bytes);
    return true;
  }

  private isClosed(): boolean {
    return this.closed;
  }
}

function digestOf(value: unknown): string {
  const digest = text(value, "digest", 64);
  if (!DIGEST.test(digest)) {
    throw protocolError(`a digest is 64 digits of lower-case hexadecimal, got ${shown(digest, 60)}`);
  }
  return digest;
}
