/** The folder's files, fetched within their size and checked against their SHA-256. */

import { hashOf, type Bytes } from "../blob_store";
import { inputError, messageOf, TapmlError } from "../errors";
import { MANIFEST, MAX_MANIFEST_BYTES, type StoredFile } from "./manifest";

/** Takes newly fetched bytes; negative if they are fetched again. */
export type Progress = (nbytes: number) => void;

export class Folder {
  constructor(
    private readonly base: string,
    private readonly signal: AbortSignal,
  ) {}

  async manifest(): Promise<Bytes> {
    const pieces: Bytes[] = [];
    let total = 0;
    // Never a cached one: a replaced folder has a manifest of the same name.
    for await (const piece of this.pieces(MANIFEST, "no-cache")) {
      total += piece.length;
      if (total > MAX_MANIFEST_BYTES) {
        throw inputError(`${MANIFEST} has more than ${MAX_MANIFEST_BYTES} bytes`);
      }
      pieces.push(piece);
    }
    return new Uint8Array(await new Blob(pieces).arrayBuffer());
  }

  /** A file of the manifest; fetched again if the cache holds another version. */
  async file(stored: StoredFile, progress: Progress = () => undefined): Promise<Bytes> {
    let found = await this.attempt(stored, "default", progress);
    if (typeof found === "string") {
      progress(-stored.bytes);
      found = await this.attempt(stored, "reload", progress);
    }
    if (typeof found === "string") {
      throw inputError(
        `${stored.name} ${found}: the folder was not copied completely, is being replaced, or was ` +
          "edited; copy it again, or make it again with `tapml package --browser`",
      );
    }
    return found;
  }

  /** The file, or its fault. */
  private async attempt(
    stored: StoredFile,
    cache: RequestCache,
    progress: Progress,
  ): Promise<Bytes | string> {
    const content = new Uint8Array(stored.bytes);
    let at = 0;
    for await (const piece of this.pieces(stored.name, cache)) {
      if (at + piece.length > stored.bytes) {
        progress(stored.bytes - at);
        return `has more than the ${stored.bytes} bytes that ${MANIFEST} says`;
      }
      content.set(piece, at);
      at += piece.length;
      progress(piece.length);
    }
    if (at < stored.bytes) {
      progress(stored.bytes - at);
      return `has ${at} bytes, expected ${stored.bytes}`;
    }
    const sha256 = await hashOf(content);
    return sha256 === stored.sha256 ? content : `has SHA-256 ${sha256}, expected ${stored.sha256}`;
  }

  private async *pieces(name: string, cache: RequestCache): AsyncGenerator<Bytes> {
    const url = new URL(name, this.base);
    let response: Response;
    try {
      response = await fetch(url, { cache, signal: this.signal });
    } catch (error) {
      throw this.interrupted(name, error);
    }
    if (!response.ok || response.body === null) {
      throw new TapmlError(
        "InputError",
        `${name} is missing: the server answers ${response.status} for ${url.href}; copy the ` +
          "folder whole",
      );
    }
    const reader = response.body.getReader();
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done) {
          return;
        }
        yield value;
      }
    } catch (error) {
      throw this.interrupted(name, error);
    } finally {
      await reader.cancel().catch(() => null);
    }
  }

  private interrupted(name: string, error: unknown): TapmlError {
    return new TapmlError(
      "SetupError",
      this.signal.aborted
        ? "loading was stopped"
        : `${name} could not be fetched (${messageOf(error)}): the server does not answer; try again`,
    );
  }
}
