/** Device memory: allocated, written, read, filled and copied at any byte. */

import { ByteCopy, type Place } from "./byte_copy";
import { inputError, messageOf, TapmlError } from "./errors";
import type { Steps } from "./steps";
import { Submission } from "./submission";

const USAGE = 0x80 | 0x04 | 0x08; // STORAGE, COPY_SRC, COPY_DST
const FILL_BYTES = 1 << 20;

/** A buffer; `nbytes` are the caller's, `gpu.size` is that rounded up to whole words. */
export interface DeviceBuffer {
  readonly id: number;
  readonly gpu: GPUBuffer;
  readonly nbytes: number;
}

const words = (nbytes: number): number => Math.max(4, Math.ceil(nbytes / 4) * 4);

export class Memory {
  /** Bytes allocated now, including workspaces and scratch. */
  allocated = 0;
  readonly bytes: ByteCopy;
  private readonly submission: Submission;
  private count = 0;

  constructor(readonly device: GPUDevice) {
    this.bytes = new ByteCopy(device);
    this.submission = Submission.for(device);
  }

  /** Allocate; `undo` is called if the browser reports later that memory ran out. */
  allocate(steps: Steps, nbytes: number, undo?: () => void): DeviceBuffer {
    const most = this.device.limits.maxBufferSize;
    if (words(nbytes) > most) {
      throw new TapmlError(
        "LimitExceededError",
        `a buffer of ${nbytes} bytes; this browser's adapter allows ${most} (maxBufferSize)`,
      );
    }
    let gpu: GPUBuffer;
    try {
      gpu = steps.run(
        `allocating ${nbytes} bytes`,
        () => this.device.createBuffer({ size: words(nbytes), usage: USAGE }),
        undo,
      );
    } catch (error) {
      throw new TapmlError("SetupError", `no memory for ${nbytes} bytes: ${messageOf(error)}`);
    }
    this.allocated += gpu.size;
    this.count += 1;
    return { id: this.count, gpu, nbytes };
  }

  free(buffer: DeviceBuffer): void {
    this.allocated -= buffer.gpu.size;
    this.submission.discard(buffer.gpu);
  }

  write(steps: Steps, buffer: DeviceBuffer, offset: number, data: Uint8Array<ArrayBuffer>): void {
    if (data.length === 0) {
      return;
    }
    const stage = `writing ${data.length} bytes`;
    if (offset % 4 === 0 && data.length % 4 === 0) {
      this.enqueue(steps, stage, buffer.gpu, offset, data);
      return;
    }
    const padded = new Uint8Array(words(data.length));
    padded.set(data);
    if (offset % 4 === 0 && offset + data.length === buffer.nbytes) {
      // The padding behind the last byte is unused.
      this.enqueue(steps, stage, buffer.gpu, offset, padded);
      return;
    }
    const bytes = steps.run(stage, () => this.scratch(padded));
    steps.encode(stage, (encoder) => {
      const source = { buffer: bytes, byteOffset: 0 };
      this.bytes.encode(encoder, source, { buffer: buffer.gpu, byteOffset: offset }, data.length);
    });
    this.submission.discard(bytes);
  }

  fill(steps: Steps, buffer: DeviceBuffer, offset: number, nbytes: number, pattern: Uint8Array): void {
    if (pattern.length === 0) {
      throw inputError("fill: the pattern must hold at least one byte");
    }
    if (offset % 4 === 0 && nbytes % 4 === 0 && pattern.every((byte) => byte === 0)) {
      steps.encode(`clearing ${nbytes} bytes`, (encoder) => encoder.clearBuffer(buffer.gpu, offset, nbytes));
      return;
    }
    // A multiple of pattern and word size, so that every piece starts alike.
    const unit = pattern.length * 4;
    const size = Math.min(Math.ceil(nbytes / unit), Math.max(1, Math.floor(FILL_BYTES / unit)));
    const block = new Uint8Array(size * unit);
    for (let at = 0; at < block.length; at += pattern.length) {
      block.set(pattern, at);
    }
    for (let done = 0; done < nbytes; done += block.length) {
      this.write(steps, buffer, offset + done, block.subarray(0, Math.min(block.length, nbytes - done)));
    }
  }

  /** Copy between buffers, or between disjoint windows of one. */
  copy(
    steps: Steps,
    source: DeviceBuffer,
    sourceOffset: number,
    target: DeviceBuffer,
    targetOffset: number,
    nbytes: number,
  ): void {
    const what = `copying ${nbytes} bytes`;
    const from = { buffer: source.gpu, byteOffset: sourceOffset };
    const into = { buffer: target.gpu, byteOffset: targetOffset };
    if (source !== target) {
      steps.encode(what, (encoder) => this.encodeCopy(encoder, from, into, nbytes));
      return;
    }
    const between = {
      buffer: steps.run(what, () => this.device.createBuffer({ size: words(nbytes), usage: USAGE })),
      byteOffset: 0,
    };
    steps.encode(what, (encoder) => {
      this.encodeCopy(encoder, from, between, nbytes);
      this.encodeCopy(encoder, between, into, nbytes);
    });
    this.submission.discard(between.buffer);
  }

  /** Encode a copy between two different storage buffers, at any byte. */
  encodeCopy(encoder: GPUCommandEncoder, source: Place, target: Place, nbytes: number): void {
    if (nbytes === 0) {
      return;
    }
    if (source.byteOffset % 4 === 0 && target.byteOffset % 4 === 0 && nbytes % 4 === 0) {
      encoder.copyBufferToBuffer(source.buffer, source.byteOffset, target.buffer, target.byteOffset, nbytes);
    } else {
      this.bytes.encode(encoder, source, target, nbytes);
    }
  }

  /** A write enters the queue immediately, so submit earlier encoded work first. */
  private enqueue(
    steps: Steps,
    stage: string,
    buffer: GPUBuffer,
    offset: number,
    data: Uint8Array<ArrayBuffer>,
  ): void {
    steps.flush();
    steps.run(stage, () => this.device.queue.writeBuffer(buffer, offset, data));
  }

  private scratch(content: Uint8Array): GPUBuffer {
    const size = content.length;
    const buffer = this.device.createBuffer({ size, usage: USAGE, mappedAtCreation: true });
    new Uint8Array(buffer.getMappedRange()).set(content);
    buffer.unmap();
    return buffer;
  }
}
