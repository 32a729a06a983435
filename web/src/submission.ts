/**
 * Commands on their way to the GPU's queue.
 *
 * What a batch encodes is gathered in one encoder and submitted at once: a decode step is one submit.
 * At most one encoder is open for a device. Memory that it names may be given back meanwhile, but is
 * destroyed only behind its submit.
 */

export class Submission {
  private encoder: GPUCommandEncoder | null = null;
  private readonly discarded: GPUBuffer[] = [];

  private constructor(private readonly device: GPUDevice) {}

  private static readonly of = new WeakMap<GPUDevice, Submission>();

  /** The one of a device. */
  static for(device: GPUDevice): Submission {
    let found = Submission.of.get(device);
    if (found === undefined) {
      found = new Submission(device);
      Submission.of.set(device, found);
    }
    return found;
  }

  get isOpen(): boolean {
    return this.encoder !== null;
  }

  /** The encoder that is open, or a new one. */
  open(): GPUCommandEncoder {
    this.encoder ??= this.device.createCommandEncoder();
    return this.encoder;
  }

  /** Submit what was encoded, then destroy what it was the last to use. */
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

  /** Destroy a buffer, as soon as nothing that was encoded needs it. */
  discard(buffer: GPUBuffer): void {
    if (this.encoder === null) {
      buffer.destroy();
    } else {
      this.discarded.push(buffer);
    }
  }
}
