/**
 * Blobs in the browser's cache storage, which outlives the page. Each owner has separate copies, so no
 * access list is needed. Readers verify the hash.
 */

import type { BlobDisk, Bytes } from "./blob_store";

export type Shelf = Pick<Cache, "delete" | "keys" | "match" | "put">;

const NAME = "tapml-blobs";
const MAX_BYTES = 8 * 2 ** 30;
const PLACE = /\/kept\/([^/]+)\/([0-9a-f]{64})\/([0-9]{1,12})$/;

export class CacheDisk implements BlobDisk {
  nbytes = 0;
  /** Sizes by owner and digest, least recently used first. */
  private readonly sizes = new Map<string, number>();
  /** The last write or removal: they run one after the other. */
  private last: Promise<unknown> = Promise.resolve();

  private constructor(
    private readonly shelf: Shelf,
    private readonly origin: string,
    readonly budget: number,
  ) {}

  /** Open a shelf with the blobs that an earlier page left there. */
  static async of(shelf: Shelf, origin: string, budget: number): Promise<CacheDisk> {
    const disk = new CacheDisk(shelf, origin, budget);
    for (const { url } of await shelf.keys()) {
      const [, owner, digest, size] = PLACE.exec(url) ?? [];
      if (owner !== undefined && digest !== undefined) {
        disk.note(decodeURIComponent(owner), digest, Number(size));
      }
    }
    return disk;
  }

  /** This page's disk, a quarter of the browser's quota; null if there is none. */
  static async open(): Promise<CacheDisk | null> {
    try {
      const { quota = 0 } = await navigator.storage.estimate();
      const budget = Math.min(MAX_BYTES, Math.floor(quota / 4));
      return budget === 0 ? null : await CacheDisk.of(await caches.open(NAME), location.origin, budget);
    } catch {
      return null;
    }
  }

  /** Remove all blobs of this origin. */
  static async clear(): Promise<void> {
    try {
      await caches.delete(NAME);
    } catch {
      // Without storage there is nothing to remove.
    }
  }

  size(owner: string, digest: string): number {
    return this.sizes.get(key(owner, digest)) ?? 0;
  }

  async read(owner: string, digest: string): Promise<Bytes | null> {
    const nbytes = this.size(owner, digest);
    this.note(owner, digest, nbytes);
    const found = await this.shelf.match(this.place(owner, digest, nbytes));
    return found === undefined ? null : new Uint8Array(await found.arrayBuffer());
  }

  write(owner: string, digest: string, bytes: Bytes): Promise<void> {
    return this.inTurn(async () => {
      if (bytes.length > this.budget || this.size(owner, digest) > 0) {
        return;
      }
      await this.makeRoom(bytes.length);
      await this.shelf.put(this.place(owner, digest, bytes.length), new Response(bytes));
      this.note(owner, digest, bytes.length);
    });
  }

  remove(owner: string, digest: string): Promise<void> {
    return this.inTurn(() => this.drop(owner, digest));
  }

  private inTurn(work: () => Promise<void>): Promise<void> {
    const done = this.last.then(work);
    this.last = done.catch(() => null);
    return done;
  }

  private async drop(owner: string, digest: string): Promise<void> {
    const nbytes = this.forget(owner, digest);
    await this.shelf.delete(this.place(owner, digest, nbytes));
  }

  /** Remove the least recently used until `nbytes` fit. */
  private async makeRoom(nbytes: number): Promise<void> {
    for (const each of [...this.sizes.keys()]) {
      if (this.nbytes + nbytes <= this.budget) {
        return;
      }
      const [digest = "", owner = ""] = each.split(" ", 2);
      await this.drop(decodeURIComponent(owner), digest);
    }
  }

  private note(owner: string, digest: string, nbytes: number): void {
    this.forget(owner, digest);
    this.sizes.set(key(owner, digest), nbytes);
    this.nbytes += nbytes;
  }

  private forget(owner: string, digest: string): number {
    const nbytes = this.size(owner, digest);
    this.sizes.delete(key(owner, digest));
    this.nbytes -= nbytes;
    return nbytes;
  }

  private place(owner: string, digest: string, nbytes: number): string {
    return `${this.origin}/kept/${encodeURIComponent(owner)}/${digest}/${nbytes}`;
  }
}

// Encoded, an owner's name has no blank.
const key = (owner: string, digest: string): string => `${digest} ${encodeURIComponent(owner)}`;
