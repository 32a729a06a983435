/** Reports the loss of a model's GPU device by name, even if another error comes first. */

import { TapmlError } from "../errors";

/** Errors caused by a loss may arrive before the loss itself. */
const GRACE_MILLISECONDS = 500;

export class Loss {
  /** The error that says so, once the device is lost. */
  readonly told: Promise<TapmlError>;
  private error: TapmlError | null = null;
  /** Rejects waiting steps. With Promise.race, `told` would keep every step's result alive. */
  private readonly waiting = new Set<(error: TapmlError) => void>();

  constructor(device: GPUDevice) {
    this.told = device.lost.then(
      ({ reason, message }) =>
        new TapmlError(
          "DeviceLostError",
          `the GPU device was lost (${reason}): ` +
            `${message.replace(/\.$/, "") || "the browser gives no reason"}; what it held is gone: ` +
            "load the model again",
        ),
    );
    void this.told.then((error) => {
      this.error = error;
      for (const end of this.waiting) {
        end(error);
      }
    });
  }

  /** Await `work`; rejects with the loss if the device is lost first, even if `work` hangs. */
  async during<T>(work: Promise<T>): Promise<T> {
    try {
      return await this.orLost(work);
    } catch (error) {
      if (error instanceof TapmlError && error.kind === "InputError") {
        throw error;
      }
      const late = new Promise((resolve) => setTimeout(resolve, GRACE_MILLISECONDS));
      await this.orLost(late);
      throw error;
    }
  }

  private async orLost<T>(work: Promise<T>): Promise<T> {
    let end: (error: TapmlError) => void = () => undefined;
    try {
      return await new Promise<T>((resolve, reject) => {
        end = reject;
        this.waiting.add(end);
        work.then(resolve, reject);
        if (this.error !== null) {
          end(this.error);
        }
      });
    } finally {
      this.waiting.delete(end);
    }
  }
}
