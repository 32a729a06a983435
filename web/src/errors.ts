/**
 * The errors of `tapml_targets/errors.py` by kind; a message states what was expected, what came, and
 * what to do next.
 */

export type ErrorKind =
  | "CompileError"
  | "DeviceLostError"
  | "DeviceRestartedError"
  | "InputError"
  | "KernelTimeoutError"
  | "LimitExceededError"
  | "ProtocolError"
  | "RemoteError"
  | "SetupError";

/** An error that the client rebuilds by its kind; `log` is the browser's WebGPU message. */
export class TapmlError extends Error {
  readonly kind: ErrorKind;
  readonly log: string;

  constructor(kind: ErrorKind, message: string, log = "") {
    super(message);
    this.name = kind;
    this.kind = kind;
    this.log = log;
  }
}

export const inputError = (message: string): TapmlError => new TapmlError("InputError", message);

export const protocolError = (message: string): TapmlError => new TapmlError("ProtocolError", message);

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message || error.name : String(error);
}
