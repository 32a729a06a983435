/** Fields of a `tokenizer.json`, checked. */

import { inputError, type TapmlError } from "../../errors";

export type Fields = Readonly<Record<string, unknown>>;

export const isFields = (value: unknown): value is Fields =>
  typeof value === "object" && value !== null && !Array.isArray(value);

const kindOf = (data: Fields): string => shown(data["type"]);

/** A few characters of a value, for a message. */
export const shown = (value: unknown): string =>
  (typeof value === "string" ? `'${value}'` : JSON.stringify(value ?? null)).slice(0, 60);

export function optional(data: Fields, key: string): Fields | null {
  const value = data[key] ?? null;
  if (value !== null && !isFields(value)) {
    throw inputError(`${key} is no JSON object`);
  }
  return value;
}

export function entries(data: Fields, key: string): readonly Fields[] {
  const value = data[key];
  if (!Array.isArray(value) || !value.every(isFields)) {
    throw inputError(`a step of kind Sequence has no list of ${key}`);
  }
  return value;
}

export function textField(data: Fields, key: string): string {
  const value = data[key];
  if (typeof value !== "string") {
    throw inputError(`a step of kind ${kindOf(data)} has no text ${key}`);
  }
  return value;
}

export function flag(data: Fields, key: string, otherwise?: boolean): boolean {
  const value = data[key] ?? otherwise;
  if (typeof value !== "boolean") {
    throw inputError(`a step of kind ${kindOf(data)} has no flag ${key}`);
  }
  return value;
}

export const unsupported = (what: string, data: Fields): TapmlError =>
  inputError(`the ${what} ${kindOf(data)} is not supported`);
