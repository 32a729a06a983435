/** Libraries that were built on this device, which sessions share. */

import { inputError } from "./errors";
import type { Gpu } from "./gpu";
import { unpackLibrary } from "./library_format";
import { LoadedLibrary } from "./loaded_library";
import type { Memory } from "./memory";

const MAX_IDLE_BUILT = 64;

/** A Library built on the device and how many handles name it. */
export interface BuiltLibrary {
  readonly digest: string;
  readonly loaded: LoadedLibrary;
  users: number;
}

export class LibraryStore {
  private readonly built = new Map<string, Promise<BuiltLibrary>>();
  private readonly idle: BuiltLibrary[] = [];

  constructor(
    private readonly gpu: Gpu,
    private readonly memory: Memory,
    private readonly libraryBytes: number,
  ) {}

  /** Build a packed Library, or reuse the built one. */
  async load(digest: string, packed: Uint8Array): Promise<BuiltLibrary> {
    let building = this.built.get(digest);
    if (building === undefined) {
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
}
