/**
 * Commands on their way to the GPU's queue.
 *
 * A batch encodes into one encoder and submits once: a decode step is one submit. A device has at most
 * one open encoder. Buffers that it uses may be freed meanwhile; they are destroyed after its submit.
 */

export class Submission {
  private encoder: GPUCommandEncoder | null = null;
  private readonly discarded: GPUBuffer[] = [];

  private constructor(private readonly device: GPUDevice) {}

  private static readonly of = new WeakMap<GPUDevice, Submission>();

  static for(device: GPUDevice): Submission {
    let found = Submission.of.get(device);
    if (found === undefined) {
      found = new Submission(device);
      Submission.of.set(device, found);
    }
    return found;
  }

  /** The encoder that is open, or a new one. */
  open(): GPUCommandEncoder {
    this.encoder ??= this.device.createCommandEncoder();
    return this.encoder;
  }

  /** Submit the encoder, then destroy the discarded buffers. */
  submit(): void {
    const { encoder } = this;
    this.encoder = null;
    try {
      if (encoder !== null) {
        this.device.queue.submit([encoder.finish()]);
      }
    } finally {
      for (const buffer of this.discarded.splice(0)) {
        buffer.destroy();
      }
    }
  }

  /** Destroy a buffer once no open encoder needs it. */
  discard(buffer: GPUBuffer): void {
    if (this.encoder === null) {
      buffer.destroy();
    } else {
      this.discarded.push(buffer);
    }
  }
}
