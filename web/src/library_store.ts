/** Libraries of this device: packed ones by hash, and built ones, which sessions share. */

import { hashOf } from "./blob_store";
import { inputError, protocolError } from "./errors";
import type { Gpu } from "./gpu";
import { unpackLibrary } from "./library_format";
import { LoadedLibrary } from "./loaded_library";
import type { Memory } from "./memory";

const MAX_IDLE_BUILT = 64;
const MAX_UPLOADS = 4;

export interface Upload {
  readonly data: Uint8Array<ArrayBuffer>;
  received: number;
}

/** A Library built on the device and how many handles name it. */
export interface BuiltLibrary {
  readonly digest: string;
  readonly loaded: LoadedLibrary;
  users: number;
}

export class LibraryStore {
  private readonly held = new Map<string, Uint8Array>();
  private readonly built = new Map<string, Promise<BuiltLibrary>>();
  private readonly idle: BuiltLibrary[] = [];

  constructor(
    private readonly gpu: Gpu,
    private readonly memory: Memory,
    private readonly heldBytes: number,
    private readonly libraryBytes: number,
  ) {}

  holds(digest: string): boolean {
    return this.held.has(digest) || this.built.has(digest);
  }

  /** Take a piece of a packed Library; pieces come in order, and the hash is checked at the end. */
  async receive(
    uploads: Map<string, Upload>,
    digest: string,
    total: number,
    offset: number,
    piece: Uint8Array,
  ): Promise<void> {
    if (total <= 0 || total > this.libraryBytes) {
      throw protocolError(`a Library of ${total} bytes; this device takes at most ${this.libraryBytes}`);
    }
    if (offset === 0) {
      if (!uploads.has(digest) && uploads.size >= MAX_UPLOADS) {
        throw protocolError(`more than ${MAX_UPLOADS} Libraries are being uploaded at once`);
      }
      uploads.set(digest, { data: new Uint8Array(total), received: 0 });
    }
    const upload = uploads.get(digest);
    if (upload?.received !== offset || offset + piece.length > upload.data.length) {
      uploads.delete(digest);
      throw protocolError(
        `piece at ${offset} of Library ${digest.slice(0, 12)} does not follow the one before`,
      );
    }
    upload.data.set(piece, offset);
    upload.received += piece.length;
    if (upload.received < total) {
      return;
    }
    uploads.delete(digest);
    const found = await hashOf(upload.data);
    if (found !== digest) {
      throw protocolError(`Library announced as ${digest.slice(0, 12)} arrived as ${found.slice(0, 12)}`);
    }
    this.keep(digest, upload.data);
  }

  /** Build a held Library or one from a blob, or reuse the built one. */
  async load(digest: string, attached?: Uint8Array): Promise<BuiltLibrary> {
    let building = this.built.get(digest);
    if (building === undefined) {
      const packed = this.held.get(digest) ?? attached;
      if (packed === undefined) {
        throw inputError(`Library ${digest.slice(0, 12)} is not held here: upload it first`);
      }
      if (packed.length > this.libraryBytes) {
        throw inputError(
          `a Library of ${packed.length} bytes; this device takes at most ${this.libraryBytes}`,
        );
      }
      building = LoadedLibrary.load(this.gpu, this.memory, unpackLibrary(packed)).then((loaded) => ({
        digest,
        loaded,
        users: 0,
      }));
      this.built.set(digest, building);
      building.catch(() => this.built.delete(digest));
    }
    const built = await building;
    built.users += 1;
    const at = this.idle.indexOf(built);
    if (at >= 0) {
      this.idle.splice(at, 1);
    }
    return built;
  }

  /** Release a handle; idle Libraries beyond a bound are dropped, oldest first. */
  release(built: BuiltLibrary): void {
    built.users -= 1;
    if (built.users > 0) {
      return;
    }
    built.loaded.releaseWorkspaces();
    this.idle.push(built);
    while (this.idle.length > MAX_IDLE_BUILT) {
      const dropped = this.idle.shift();
      if (dropped !== undefined) {
        this.built.delete(dropped.digest);
      }
    }
  }

  private keep(digest: string, packed: Uint8Array): void {
    this.held.set(digest, packed);
    let total = [...this.held.values()].reduce((sum, each) => sum + each.length, 0);
    for (const [oldest, each] of this.held) {
      if (total <= this.heldBytes || oldest === digest) {
        break;
      }
      this.held.delete(oldest);
      total -= each.length;
    }
  }
}
