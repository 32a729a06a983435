/**
 * The error tree of tapml as this device raises it: a kind, by its name in `tapml_targets/errors.py`,
 * and a message that says what was expected, what came and what to do.
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

/** An error with a kind that the client rebuilds; `log` is what the browser's WebGPU said. */
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

export const protocolError = (message: string): TapmlError =>
  new TapmlError("ProtocolError", message);

/** The message of whatever was thrown. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message || error.name : String(error);
}
