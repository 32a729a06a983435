/**
 * Bytes by their SHA-256, kept for the client that sent them: in memory while the page is open, and on
 * the browser's disk if its user wants that. Each has a budget; when room is needed, unattached blobs
 * are evicted, least recently used first.
 */

import { inputError, messageOf, protocolError, TapmlError } from "./errors";
import { BOUNDS } from "./session";
import { hex } from "./wire";

export type Bytes = Uint8Array<ArrayBuffer>;

const MAX_BLOBS = 65536;
const MAX_OWNERS = 256;

/** Storage that outlives the page, separate for each owner. */
export interface BlobDisk {
  readonly nbytes: number;
  /** Its bytes; 0 if absent. */
  size(owner: string, digest: string): number;
  /** The bytes, unverified; null if they are gone. */
  read(owner: string, digest: string): Promise<Bytes | null>;
  write(owner: string, digest: string, bytes: Bytes): Promise<void>;
  remove(owner: string, digest: string): Promise<void>;
}

interface Held {
  readonly bytes: Bytes;
  readonly owners: Set<string>;
  /** The sessions that have it attached. */
  readonly users: Set<object>;
}

/** A blob being uploaded: pieces in order, with reserved room. */
export class Arrival {
  received = 0;
  /** Whether it was kept or given up. */
  over = false;

  constructor(
    readonly owner: string,
    readonly digest: string,
    readonly bytes: Bytes,
  ) {}

  /** Take the next piece; returns whether it was the last. */
  take(offset: number, piece: Uint8Array): boolean {
    const end = offset + piece.length;
    if (offset !== this.received || piece.length === 0 || end > this.bytes.length) {
      throw protocolError(
        `bytes ${offset} to ${end} of blob ${this.digest.slice(0, 12)} do not follow the ` +
          `${this.received} of ${this.bytes.length} that are here; begin again at 0`,
      );
    }
    this.bytes.set(piece, offset);
    this.received = end;
    return end === this.bytes.length;
  }

  /** Check the bytes against the announced digest; raises a ProtocolError. */
  async verify(): Promise<void> {
    const found = await hashOf(this.bytes);
    if (found !== this.digest) {
      throw protocolError(`a blob announced as ${this.digest} arrived as ${found}`);
    }
  }
}

/** SHA-256 in hexadecimal. */
export async function hashOf(bytes: Bytes): Promise<string> {
  return hex(new Uint8Array(await crypto.subtle.digest("SHA-256", bytes)));
}

export class BlobStore {
  received = 0;
  attached = 0;
  evicted = 0;
  damaged = 0;
  private disk: BlobDisk | null = null;
  private readonly held = new Map<string, Held>();
  private readonly loading = new Map<string, Promise<void>>();
  private used = 0;
  private reserved = 0;

  /** `budget` is the most bytes in memory; unfinished uploads count. */
  constructor(readonly budget: number) {}

  /** What one session may take: any one Library if possible, and a quarter is left to others. */
  get sessionBytes(): number {
    const most = Math.max(Math.floor(this.budget / 2), BOUNDS.library_bytes);
    return Math.min(most, this.budget - Math.floor(this.budget / 4));
  }

  /** The largest Library that there can be room for. */
  get libraryBytes(): number {
    return Math.min(this.sessionBytes, BOUNDS.library_bytes);
  }

  get blobs(): number {
    return this.held.size;
  }

  /** Bytes in memory, including unfinished uploads. */
  get nbytes(): number {
    return this.used + this.reserved;
  }

  get diskBytes(): number {
    return this.disk?.nbytes ?? 0;
  }

  /** Keep copies on a disk from now on, also of present blobs; null for no disk. */
  async use(disk: BlobDisk | null): Promise<void> {
    this.disk = disk;
    for (const [digest, { bytes, owners }] of disk === null ? [] : [...this.held]) {
      for (const owner of owners) {
        if (this.disk !== disk) {
          // The choice has changed meanwhile.
          return;
        }
        // A missing copy costs only a later upload.
        await disk?.write(owner, digest, bytes).catch(() => null);
      }
    }
  }

  /** Whether a blob of `owner` is here. */
  holds(owner: string, digest: string): boolean {
    return this.owned(owner, digest) !== null || this.sizeOnDisk(owner, digest) > 0;
  }

  /** Reserve room for an upload; raises an InputError if there is none. */
  begin(owner: string, digest: string, total: number): Arrival {
    this.reserve(owner, total);
    try {
      return new Arrival(owner, digest, new Uint8Array(total));
    } catch (error) {
      this.reserved -= total;
      throw new TapmlError(
        "SetupError",
        `this browser has no memory for a blob of ${total} bytes: ${messageOf(error)}`,
      );
    }
  }

  abandon(arrival: Arrival): void {
    if (!arrival.over) {
      arrival.over = true;
      this.reserved -= arrival.bytes.length;
    }
  }

  /** Keep a complete, verified blob; its sender owns it. */
  keep(arrival: Arrival): void {
    if (arrival.over) {
      return;
    }
    const { owner, digest, bytes } = arrival;
    this.abandon(arrival);
    this.received += 1;
    this.put(owner, digest, bytes);
    if (this.sizeOnDisk(owner, digest) === 0) {
      this.disk?.write(owner, digest, bytes).catch(() => null);
    }
  }

  /** Give a session a blob, which stays until `detach`; null if its owner has none here. */
  async attach(session: object, owner: string, digest: string): Promise<Bytes | null> {
    if (this.owned(owner, digest) === null && this.sizeOnDisk(owner, digest) > 0) {
      const one = `${digest} ${owner}`;
      const loading =
        this.loading.get(one) ?? this.load(owner, digest).finally(() => this.loading.delete(one));
      this.loading.set(one, loading);
      await loading;
    }
    const found = this.owned(owner, digest);
    if (found === null) {
      return null;
    }
    found.users.add(session);
    this.attached += 1;
    return found.bytes;
  }

  detach(session: object, digest: string): void {
    this.held.get(digest)?.users.delete(session);
  }

  /** A blob of an owner; marks it as used. */
  private owned(owner: string, digest: string): Held | null {
    const found = this.held.get(digest);
    if (found?.owners.has(owner) !== true) {
      return null;
    }
    this.held.delete(digest);
    this.held.set(digest, found);
    return found;
  }

  private put(owner: string, digest: string, bytes: Bytes): void {
    let blob = this.held.get(digest);
    if (blob === undefined) {
      blob = { bytes, owners: new Set(), users: new Set() };
      this.used += bytes.length;
    }
    this.held.delete(digest);
    this.held.set(digest, blob);
    if (blob.owners.size < MAX_OWNERS) {
      blob.owners.add(owner);
    }
  }

  private sizeOnDisk(owner: string, digest: string): number {
    return this.disk?.size(owner, digest) ?? 0;
  }

  /** Reserve bytes, evicting unused blobs. */
  private reserve(owner: string, nbytes: number): void {
    const room = this.budget - this.reserved - nbytes;
    const full = (): boolean => this.used > room || this.held.size >= MAX_BLOBS;
    for (const [digest, blob] of room >= 0 ? [...this.held] : []) {
      if (!full()) {
        break;
      }
      if (blob.users.size === 0) {
        this.drop(digest, blob);
        this.evicted += 1;
      }
    }
    if (full()) {
      throw inputError(this.refusal(owner, nbytes));
    }
    this.reserved += nbytes;
  }

  /** Why a blob does not fit: what this owner and others have attached. */
  private refusal(owner: string, nbytes: number): string {
    let own = 0;
    let others = 0;
    for (const { bytes, owners, users } of this.held.values()) {
      if (users.size > 0 && owners.has(owner)) {
        own += bytes.length;
      } else if (users.size > 0) {
        others += bytes.length;
      }
    }
    return (
      `no room for a blob of ${nbytes} bytes in a page that keeps ${this.budget}: ${own} bytes of ` +
      `yours are attached, ${others} of others, ${this.reserved} are on their way`
    );
  }

  private drop(digest: string, blob: Held): void {
    this.held.delete(digest);
    this.used -= blob.bytes.length;
  }

  /** Load a blob from disk if its hash is right. */
  private async load(owner: string, digest: string): Promise<void> {
    const nbytes = this.sizeOnDisk(owner, digest);
    this.reserve(owner, nbytes);
    try {
      // If the disk fails, the client sends the bytes again.
      const bytes = (await this.disk?.read(owner, digest).catch(() => null)) ?? null;
      if (bytes?.length === nbytes && (await hashOf(bytes)) === digest) {
        this.put(owner, digest, bytes);
        return;
      }
    } finally {
      this.reserved -= nbytes;
    }
    this.damaged += 1;
    await this.disk?.remove(owner, digest).catch(() => null);
  }
}
