/** Errors in wire form: class name, message, trace, command and the browser's log. */

import { messageOf, TapmlError } from "./errors";
import { shown, type Header } from "./wire";

const MESSAGE_CHARACTERS = 16 << 10;
const LOG_CHARACTERS = 64 << 10;
const COMMAND_CHARACTERS = 400;

/** A short readable form of a command. */
export function renderCommand(command: unknown): string {
  if (typeof command === "string") {
    return command.slice(0, COMMAND_CHARACTERS);
  }
  if (!Array.isArray(command) || command.length === 0) {
    return shown(command).slice(0, COMMAND_CHARACTERS);
  }
  const [name, ...fields] = command as unknown[];
  const list = fields.map((field) => shown(field)).join(", ");
  return `${typeof name === "string" ? name : shown(name)}(${list})`.slice(0, COMMAND_CHARACTERS);
}

/** Describe an error; one outside the tree becomes a RemoteError that names its class. */
export function failureToWire(error: unknown, command: unknown = "", index = 0): Header {
  const known = error instanceof TapmlError;
  const name = error instanceof Error ? error.name : typeof error;
  return {
    kind: known ? error.kind : "RemoteError",
    message: shorten(known ? error.message : `${name}: ${messageOf(error)}`, MESSAGE_CHARACTERS),
    traceback: shorten(
      `Traceback (in the browser, most recent call first):\n${(error instanceof Error && error.stack) || ""}`,
      MESSAGE_CHARACTERS,
    ),
    command: renderCommand(command),
    log: shorten(known ? error.log : "", LOG_CHARACTERS),
    index,
  };
}

/** Keep head and tail: a log's start shows where, a message's end what. */
export function shorten(value: string, bound: number): string {
  if (value.length <= bound) {
    return value;
  }
  const half = Math.floor(bound / 2) - 20;
  const left = value.length - 2 * half;
  return `${value.slice(0, half)}\n[... ${left} characters left out ...]\n${value.slice(-half)}`;
}
