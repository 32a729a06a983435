/** Reads from the GPU through mappable memory. */

import { TapmlError } from "./errors";
import type { DeviceBuffer, Memory } from "./memory";
import { noticed } from "./noticed";
import type { Steps } from "./steps";
import { Submission } from "./submission";

const MAP_READ = 1;
const COPY_DST = 8;
const STORAGE_AND_COPIES = 0x80 | 0x04 | 0x08;
/** Buffers kept for later reads. */
const MAX_KEPT = 4;

/** A pool of mappable buffers. */
export class StagePool {
  private readonly kept: GPUBuffer[] = [];

  constructor(private readonly device: GPUDevice) {}

  take(nbytes: number): GPUBuffer {
    const index = this.kept.findIndex((buffer) => buffer.size >= nbytes);
    const found = index >= 0 ? this.kept.splice(index, 1)[0] : undefined;
    const size = Math.max(1 << 16, 2 ** Math.ceil(Math.log2(Math.max(nbytes, 1))));
    return found ?? this.device.createBuffer({ size, usage: MAP_READ | COPY_DST });
  }

  giveBack(buffer: GPUBuffer): void {
    this.kept.push(buffer);
    if (this.kept.length > MAX_KEPT) {
      this.kept.shift()?.destroy();
    }
  }
}

/** Several windows that are read with one mapping. */
export class Readback {
  private readonly stage: GPUBuffer;
  private readonly windows: (readonly [number, number])[] = [];
  private end = 0;
  private over = false;

  constructor(
    private readonly memory: Memory,
    private readonly pool: StagePool,
    nbytes: number,
  ) {
    this.stage = pool.take(nbytes);
  }

  /** Copy a window to `position` of the result, a multiple of 8. */
  add(steps: Steps, buffer: DeviceBuffer, offset: number, nbytes: number, position: number): void {
    const { device } = this.memory;
    this.end = Math.max(this.end, position + nbytes);
    this.windows.push([position, position + nbytes]);
    const size = Math.ceil(nbytes / 4) * 4;
    const what = `reading ${nbytes} bytes`;
    if (offset % 4 === 0) {
      steps.encode(what, (encoder) =>
        encoder.copyBufferToBuffer(buffer.gpu, offset, this.stage, position, size),
      );
      return;
    }
    const whole = steps.run(what, () => device.createBuffer({ size, usage: STORAGE_AND_COPIES }));
    steps.encode(what, (encoder) => {
      const source = { buffer: buffer.gpu, byteOffset: offset };
      this.memory.encodeCopy(encoder, source, { buffer: whole, byteOffset: 0 }, nbytes);
      encoder.copyBufferToBuffer(whole, 0, this.stage, position, size);
    });
    Submission.for(device).discard(whole);
  }

  /** Wait for the bytes and copy them. */
  async take(): Promise<Uint8Array<ArrayBuffer>> {
    const size = Math.ceil(this.end / 8) * 8;
    if (size === 0) {
      this.giveBack();
      return new Uint8Array(0);
    }
    await this.mapped(size);
    if (this.over) {
      throw new TapmlError("DeviceLostError", "the batch ended before its bytes came");
    }
    const bytes = new Uint8Array(this.end);
    const mapped = new Uint8Array(this.stage.getMappedRange(0, size));
    // Copy windows only: the gaps hold old bytes, and a chunk's gaps are zero.
    for (const [start, end] of this.windows) {
      bytes.set(mapped.subarray(start, end), start);
    }
    this.stage.unmap();
    this.giveBack();
    return bytes;
  }

  /** Wait until the bytes, one window from position 0, are mapped. */
  async ready(): Promise<void> {
    await this.mapped(Math.ceil(this.end / 8) * 8);
  }

  private mapped(size: number): Promise<undefined> {
    return noticed(this.memory.device.queue, this.stage.mapAsync(MAP_READ, 0, size));
  }

  /** Lend out the mapped bytes after `ready`, and release the memory. */
  hand(take: (bytes: Uint8Array) => void): void {
    const size = Math.ceil(this.end / 8) * 8;
    take(new Uint8Array(this.stage.getMappedRange(0, size)).subarray(0, this.end));
    this.stage.unmap();
    this.giveBack();
  }

  /** Release the memory of bytes that were not taken. */
  drop(): void {
    if (!this.over) {
      this.over = true;
      Submission.for(this.memory.device).discard(this.stage);
    }
  }

  private giveBack(): void {
    this.over = true;
    this.pool.giveBack(this.stage);
  }
}
