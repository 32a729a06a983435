/** The loss of the GPU device that holds a model: told by name, whatever it spoils first. */

import { TapmlError } from "../errors";

/** A browser may tell what a loss spoils before it tells the loss. */
const GRACE_MILLISECONDS = 500;

export class Loss {
  /** The error that says so, once the device is lost. */
  readonly told: Promise<TapmlError>;
  private readonly thrown: Promise<never>;

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
    this.thrown = this.told.then((error) => {
      throw error;
    });
    this.thrown.catch(() => null);
  }

  /** What `work` gives; the loss where the device is lost before, even if the work then hangs. */
  async during<T>(work: Promise<T>): Promise<T> {
    try {
      return await Promise.race([work, this.thrown]);
    } catch (error) {
      if (error instanceof TapmlError && error.kind === "InputError") {
        throw error;
      }
      const late = new Promise((resolve) => setTimeout(resolve, GRACE_MILLISECONDS));
      await Promise.race([this.thrown, late]);
      throw error;
    }
  }
}
