/** Commands that name Libraries and blobs by their hash. */

import { inputError, TapmlError } from "./errors";
import type { LibraryStore } from "./library_store";
import type { Memory } from "./memory";
import type { Fields, Index, RunningBatch, Waiting } from "./running_batch";
import { handleOf, integer, text } from "./wire";

/** Bytes pasted before the deadline restarts and other messages are served. */
const PASTE_BYTES = 16 << 20;

function attached(batch: RunningBatch, name: string): Uint8Array<ArrayBuffer> {
  const blob = batch.session.blobs.get(name);
  if (blob === undefined) {
    throw inputError(
      `blob ${name.slice(0, 12)} is not attached to this session: attach it, or wait for the ` +
        "answer to see whether it was",
    );
  }
  return blob;
}

export class HashCommands {
  constructor(
    private readonly memory: Memory,
    private readonly libraries: LibraryStore,
  ) {}

  /** Write bytes of an attached blob. */
  paste(batch: RunningBatch, _index: Index, [handle, offset, digest, blobOffset, nbytes]: Fields): Waiting {
    const { buffer, start, length } = batch.span(handle, offset, nbytes);
    const name = text(digest, "hash", 64);
    const first = integer(blobOffset, "blob offset");
    const blob = attached(batch, name);
    if (first + length > blob.length) {
      throw inputError(
        `bytes ${first} to ${first + length} lie outside blob ${name.slice(0, 12)} of ` +
          `${blob.length} bytes`,
      );
    }
    const data = blob.subarray(first, first + length);
    const write = (at: number): void => {
      const piece = data.subarray(at, at + PASTE_BYTES);
      this.memory.write(batch.steps, buffer, start + at, piece);
    };
    if (length <= PASTE_BYTES) {
      write(0);
      return undefined;
    }
    const rest = async (): Promise<void> => {
      for (let at = 0; at < length; at += PASTE_BYTES) {
        write(at);
        await batch.steps.settle();
        if (batch.session.ended !== "") {
          throw new TapmlError("DeviceLostError", "the session ended while a blob was pasted");
        }
        batch.session.running?.restart();
      }
    };
    return rest();
  }

  async load(batch: RunningBatch, index: Index, [handle, digest]: Fields): Promise<void> {
    const { session } = batch;
    const number = session.newHandle(handle);
    const name = text(digest, "hash", 64);
    const built = await this.libraries.load(name, attached(batch, name));
    if (session.ended !== "") {
      this.libraries.release(built);
      throw new TapmlError("DeviceLostError", "the session ended while a Library was built");
    }
    session.libraries.set(number, built);
    batch.makes(() => this.unload(batch, index, [number]));
    const { operators, entries } = built.loaded.library;
    batch.give(index, [[...operators.keys()], [...entries.keys()]]);
  }

  unload(batch: RunningBatch, _index: Index, [handle]: Fields): void {
    const number = handleOf(handle);
    const built = batch.session.libraries.get(number);
    if (built !== undefined) {
      batch.session.libraries.delete(number);
      this.libraries.release(built);
    }
  }
}
