/**
 * Integer expressions over shape symbols, with the values of `expression.py`: unbounded, hence `bigint`.
 */

import { inputError, protocolError } from "./errors";
import { shown } from "./wire";

export type Expression = bigint | string | Operation;
export interface Operation {
  readonly name: string;
  readonly operands: readonly Expression[];
}
export type Symbols = Map<string, bigint>;

export const MAX_DEPTH = 64;

type Compute = (...operands: [bigint, bigint, bigint]) => bigint;

const truth = (value: boolean): bigint => (value ? 1n : 0n);

function floorDivide(a: bigint, b: bigint): bigint {
  const quotient = a / b;
  return a % b !== 0n && a < 0n !== b < 0n ? quotient - 1n : quotient;
}

function shiftBy(count: bigint): bigint {
  if (count < 0n) {
    throw new NegativeShift();
  }
  return count;
}

class NegativeShift extends Error {}

const OPERATIONS: ReadonlyMap<string, readonly [number, Compute]> = new Map<
  string,
  readonly [number, Compute]
>([
  ["add", [2, (a, b) => a + b]],
  ["sub", [2, (a, b) => a - b]],
  ["mul", [2, (a, b) => a * b]],
  ["floordiv", [2, floorDivide]],
  ["floormod", [2, (a, b) => a - floorDivide(a, b) * b]],
  ["truncdiv", [2, (a, b) => a / b]],
  ["min", [2, (a, b) => (a < b ? a : b)]],
  ["max", [2, (a, b) => (a > b ? a : b)]],
  ["shift_left", [2, (a, b) => a << shiftBy(b < 63n ? b : 63n)]],
  ["shift_right", [2, (a, b) => a >> shiftBy(b)]],
  ["bit_and", [2, (a, b) => a & b]],
  ["eq", [2, (a, b) => truth(a === b)]],
  ["ne", [2, (a, b) => truth(a !== b)]],
  ["lt", [2, (a, b) => truth(a < b)]],
  ["le", [2, (a, b) => truth(a <= b)]],
  ["gt", [2, (a, b) => truth(a > b)]],
  ["ge", [2, (a, b) => truth(a >= b)]],
  ["and", [2, (a, b) => truth(a !== 0n && b !== 0n)]],
  ["or", [2, (a, b) => truth(a !== 0n || b !== 0n)]],
  ["not", [1, (a) => truth(a === 0n)]],
  ["select", [3, (condition, a, b) => (condition !== 0n ? a : b)]],
  ["ceil_log2", [1, (a) => (a <= 1n ? 0n : BigInt((a - 1n).toString(2).length))]],
]);

/** Evaluate an expression; `symbols` must hold all its symbols. */
export function evaluate(expression: Expression, symbols: ReadonlyMap<string, bigint>): bigint {
  if (typeof expression === "bigint") {
    return expression;
  }
  if (typeof expression === "string") {
    const value = symbols.get(expression);
    if (value === undefined) {
      const known = [...symbols.keys()].sort().join(", ") || "none";
      throw inputError(`shape symbol '${expression}' has no value here; known: ${known}`);
    }
    return value;
  }
  const operation = OPERATIONS.get(expression.name);
  if (operation === undefined) {
    throw protocolError(`unknown operation ${shown(expression.name)}`);
  }
  const [a = 0n, b = 0n, c = 0n] = expression.operands.map((each) => evaluate(each, symbols));
  try {
    return operation[1](a, b, c);
  } catch (error) {
    if (error instanceof NegativeShift) {
      throw inputError(`shift by a negative number in ${render(expression)}`);
    }
    if (error instanceof RangeError) {
      const divides = b === 0n && /div|mod/.test(expression.name);
      throw inputError(`${divides ? "division by zero" : "too large a number"} in ${render(expression)}`);
    }
    throw error;
  }
}

/** A symbol of the expression that `symbols` lacks. */
export function unknownSymbol(
  expression: Expression,
  symbols: { has(name: string): boolean },
): string | undefined {
  if (typeof expression === "bigint") {
    return undefined;
  }
  if (typeof expression === "string") {
    return symbols.has(expression) ? undefined : expression;
  }
  for (const operand of expression.operands) {
    const unknown = unknownSymbol(operand, symbols);
    if (unknown !== undefined) {
      return unknown;
    }
  }
  return undefined;
}

export function render(expression: Expression): string {
  if (typeof expression !== "object") {
    return String(expression);
  }
  return `${expression.name}(${expression.operands.map(render).join(", ")})`;
}

/** Match a shape against a declared one, adding symbols that stand alone in a dimension. */
export function bindShape(
  declared: readonly Expression[],
  actual: readonly bigint[],
  symbols: Symbols,
  what: string,
): void {
  const differs = (said: string): Error =>
    inputError(`${what}: expected ${said} (${declared.map(render).join(", ")}), got (${actual.join(", ")})`);
  if (declared.length !== actual.length) {
    throw differs(`${declared.length} dimensions`);
  }
  declared.forEach((extent, axis) => {
    const value = actual[axis] ?? 0n;
    if (typeof extent === "string" && !symbols.has(extent)) {
      symbols.set(extent, value);
    } else if (unknownSymbol(extent, symbols) === undefined && evaluate(extent, symbols) !== value) {
      throw differs("shape");
    }
  });
}

/** Check received data and return it as an expression. */
export function expressionFrom(data: unknown, depth = 0): Expression {
  if (typeof data === "bigint") {
    return data;
  }
  if (typeof data === "number" && Number.isSafeInteger(data)) {
    return BigInt(data);
  }
  if (typeof data === "string") {
    return data;
  }
  if (Array.isArray(data) && depth < MAX_DEPTH) {
    const [name, ...operands] = data as unknown[];
    if (typeof name === "string" && OPERATIONS.get(name)?.[0] === operands.length) {
      return { name, operands: operands.map((operand) => expressionFrom(operand, depth + 1)) };
    }
  }
  throw protocolError(`not an expression: ${shown(data, 80)}`);
}
