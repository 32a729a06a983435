/**
 * From a call with concrete shapes to a flat list of launches; mirrors `call_plan.py`.
 *
 * Pure: no device, no memory. A call's memory is numbered in slots: first the caller's tensors, then
 * workspaces and intermediates. Golden vectors compare the two evaluators.
 */

import { bitsOf, nbytesOf } from "./dtype";
import { inputError } from "./errors";
import { bindShape, evaluate, render, type Expression, type Symbols } from "./expression";
import { quotient } from "./quotient";
import type {
  EntryProgram,
  Extents,
  Launch,
  Library,
  OperatorProgram,
  Parameter,
  Statement,
} from "./library";

/** Bound on the statements of one call, against endless host loops. */
export const MAX_STATEMENTS = 1 << 18;
const MAX_BYTES = 1n << 48n;
const MAX_EXTENT = (1n << 63n) - 1n;

export interface TensorShape {
  readonly shape: readonly bigint[];
  readonly dtype: string;
}

/** Memory that lives for the call. Slots with one `shared` number are never alive together. */
export interface WorkspaceSlot {
  readonly name: string;
  readonly nbytes: number;
  readonly shared: number;
}

export type PlannedArgument =
  | {
      readonly kind: "buffer";
      readonly slot: number;
      readonly byteOffset: number;
      readonly nbytes: number;
    }
  | ({ readonly kind: "tensor"; readonly slot: number; readonly byteOffset: number } & TensorShape)
  | { readonly kind: "scalar"; readonly value: bigint | number; readonly dtype: string };

export interface PlannedLaunch {
  readonly kernel: string;
  readonly arguments: readonly PlannedArgument[];
  readonly grid: Extents<bigint>;
  readonly block: Extents<bigint>;
  readonly step: number;
  readonly dynamicSharedBytes: bigint;
}

/** All launches of one call. Slot `tensors.length + i` is `workspaces[i]`. */
export interface CallPlan {
  readonly tensors: readonly TensorShape[];
  readonly workspaces: readonly WorkspaceSlot[];
  readonly launches: readonly PlannedLaunch[];
}

interface Window {
  readonly slot: number;
  readonly byteOffset: bigint;
  readonly tensor: TensorShape;
}

export const tensorBytes = (tensor: TensorShape): bigint =>
  nbytesOf(
    tensor.dtype,
    tensor.shape.reduce((product, extent) => product * extent, 1n),
  );

/** Plan the launches of a call to the operator or entry `name`; raises an InputError. */
export function planCall(
  library: Library,
  name: string,
  tensors: readonly TensorShape[],
  symbols: ReadonlyMap<string, bigint>,
): CallPlan {
  const planner = new Planner(library);
  const operator = library.operators.get(name);
  const entry = library.entries.get(name);
  if (operator !== undefined) {
    planner.operator(operator, callerWindows(operator, tensors), new Map(symbols), 0, 0);
  } else if (entry !== undefined) {
    planner.entry(entry, tensors, new Map(symbols));
  } else {
    const known = [...library.operators.keys(), ...library.entries.keys()].sort();
    throw inputError(
      `this Library has no operator or entry '${name}'; it has ${known.join(", ") || "nothing"}`,
    );
  }
  return { tensors, workspaces: planner.workspaces, launches: planner.launches };
}

function callerWindows(program: OperatorProgram | EntryProgram, tensors: readonly TensorShape[]): Window[] {
  if (tensors.length !== program.parameters.length) {
    const names = program.parameters.map((each) => `${each.name} (${each.role})`).join(", ");
    throw inputError(
      `${program.name}: expected ${program.parameters.length} tensors, got ${tensors.length}; ` +
        `in order they are ${names}`,
    );
  }
  return tensors.map((tensor, slot) => ({ slot, byteOffset: 0n, tensor }));
}

/** Match tensors against parameters and add the symbols their shapes give to `symbols`. */
function bindParameters(
  name: string,
  parameters: readonly Parameter[],
  tensors: readonly TensorShape[],
  symbols: Symbols,
  expected: readonly string[],
): void {
  for (const symbol of expected) {
    if (!symbols.has(symbol)) {
      throw inputError(`${name}: no value given for its symbol '${symbol}'`);
    }
  }
  if (symbols.size > expected.length) {
    const unknown = [...symbols.keys()].filter((symbol) => !expected.includes(symbol)).sort()[0];
    throw inputError(
      `${name}: it takes no symbol '${unknown}'; its symbols: ${expected.join(", ") || "none"}`,
    );
  }
  // A compound extent may read symbols bound by a later parameter: then take a second pass.
  const late = parameters.some((each) => each.shape.some((extent) => typeof extent === "object"));
  for (let round = 0; round < (late ? 2 : 1); round += 1) {
    parameters.forEach((parameter, index) => {
      const what = `${name}: parameter '${parameter.name}'`;
      const tensor = tensors[index];
      if (tensor?.dtype !== parameter.dtype) {
        throw inputError(`${what}: expected dtype ${parameter.dtype}, got ${tensor?.dtype}`);
      }
      if (tensor.shape.some((extent) => extent < 0n)) {
        throw inputError(`${what}: negative extent in shape (${tensor.shape.join(", ")})`);
      }
      bindShape(parameter.shape, tensor.shape, symbols, what);
    });
  }
}

/** Collects slots and launches while it walks statements. */
class Planner {
  readonly workspaces: WorkspaceSlot[] = [];
  readonly launches: PlannedLaunch[] = [];
  private slots = 0;
  private statements = 0;

  constructor(private readonly library: Library) {}

  operator(
    operator: OperatorProgram,
    windows: readonly Window[],
    symbols: Symbols,
    step: number,
    shared: number,
  ): void {
    const { name, parameters } = operator;
    const tensors = windows.map((window) => window.tensor);
    bindParameters(name, parameters, tensors, symbols, operator.symbols);
    this.slots ||= windows.length;
    const known = new Map(windows.map((window, index) => [parameters[index]?.name ?? "", window] as const));
    operator.workspaces.forEach((workspace, index) =>
      known.set(workspace.name, this.workspace(workspace.name, workspace.nbytes, symbols, shared + index)),
    );
    this.run(operator.statements, symbols, known, name, step);
  }

  entry(entry: EntryProgram, tensors: readonly TensorShape[], symbols: Symbols): void {
    const storages = new Map(
      callerWindows(entry, tensors).map(
        (window, index) => [entry.parameters[index]?.name ?? "", window] as const,
      ),
    );
    bindParameters(entry.name, entry.parameters, tensors, symbols, entry.symbols);
    this.slots = tensors.length;
    entry.storages.forEach((storage, index) =>
      storages.set(storage.name, this.workspace(storage.name, storage.nbytes, symbols, index)),
    );
    const values = new Map<string, Window>();
    for (const value of entry.values) {
      const base = storages.get(value.storage);
      if (base === undefined) {
        throw inputError(`${entry.name}: no storage '${value.storage}'`);
      }
      const byteOffset = evaluate(value.byteOffset, symbols);
      const shape = value.shape.map((extent) => evaluate(extent, symbols));
      const tensor = { shape, dtype: value.dtype };
      const end = byteOffset + tensorBytes(tensor);
      const size = tensorBytes(base.tensor);
      if (byteOffset < 0n || end < byteOffset || end > size) {
        throw inputError(
          `${entry.name}: value '${value.name}' takes bytes ${byteOffset} to ${end} of ` +
            `'${value.storage}', which has ${size}`,
        );
      }
      values.set(value.name, { slot: base.slot, byteOffset, tensor });
    }
    entry.calls.forEach((call, step) => {
      const operator = this.library.operators.get(call.operator);
      const windows = call.arguments.map((argument) => values.get(argument));
      if (operator === undefined || windows.includes(undefined)) {
        throw inputError(`${entry.name}: call ${step} names what is not there`);
      }
      this.operator(
        operator,
        windows as Window[],
        new Map(call.symbols.map(([symbol, value]) => [symbol, evaluate(value, symbols)])),
        step,
        entry.storages.length,
      );
    });
  }

  private workspace(name: string, size: Expression, symbols: Symbols, shared: number): Window {
    const nbytes = evaluate(size, symbols);
    if (nbytes < 0n || nbytes > MAX_BYTES) {
      throw inputError(`workspace '${name}': ${render(size)} gives ${nbytes} bytes`);
    }
    this.workspaces.push({ name, nbytes: Number(nbytes), shared });
    const slot = this.slots;
    this.slots += 1;
    return { slot, byteOffset: 0n, tensor: { shape: [nbytes], dtype: "uint8" } };
  }

  private run(
    statements: readonly Statement[],
    symbols: Symbols,
    known: ReadonlyMap<string, Window>,
    name: string,
    step: number,
  ): void {
    for (const statement of statements) {
      this.count(name);
      switch (statement.kind) {
        case "launch":
          this.launch(statement, symbols, known, name, step);
          break;
        case "loop": {
          const first = evaluate(statement.start, symbols);
          const end = first + evaluate(statement.extent, symbols);
          for (let value = first; value < end; value += 1n) {
            this.count(name);
            const inner = new Map(symbols).set(statement.symbol, value);
            this.run(statement.body, inner, known, name, step);
          }
          break;
        }
        case "if": {
          const holds = evaluate(statement.condition, symbols) !== 0n;
          const branch = holds ? statement.then : statement.otherwise;
          this.run(branch, new Map(symbols), known, name, step);
          break;
        }
        case "bind": {
          const bound = evaluate(statement.value, symbols);
          if (bound < -MAX_EXTENT || bound > MAX_EXTENT) {
            throw inputError(`${name}: '${statement.symbol}' = ${render(statement.value)} exceeds 64 bits`);
          }
          symbols.set(statement.symbol, bound);
        }
      }
    }
  }

  private count(name: string): void {
    this.statements += 1;
    if (this.statements > MAX_STATEMENTS) {
      throw inputError(`${name}: one call would take more than ${MAX_STATEMENTS} statements`);
    }
  }

  private launch(
    launch: Launch,
    symbols: Symbols,
    known: ReadonlyMap<string, Window>,
    name: string,
    step: number,
  ): void {
    const what = `${name}: kernel '${launch.kernel}'`;
    const grid = extents(launch.grid, symbols, what);
    const block = extents(launch.block, symbols, what);
    if (grid.includes(0n) || block.includes(0n)) {
      return;
    }
    const planned = launch.arguments.map((argument): PlannedArgument => {
      if (argument.kind === "scalar") {
        const value = evaluate(argument.value, symbols);
        if (argument.divisor !== 1n) {
          const divisor = evaluate(argument.divisor, symbols);
          return { kind: "scalar", value: quotient(value, divisor, argument.dtype, what), dtype: argument.dtype };
        }
        checkScalar(value, argument.dtype, what);
        return { kind: "scalar", value, dtype: argument.dtype };
      }
      const window = known.get(argument.name);
      if (window === undefined) {
        throw inputError(`${what}: no tensor or workspace '${argument.name}'`);
      }
      const { slot } = window;
      if (argument.kind === "tensor") {
        return { kind: "tensor", slot, byteOffset: Number(window.byteOffset), ...window.tensor };
      }
      const inner = evaluate(argument.byteOffset, symbols);
      const size = tensorBytes(window.tensor);
      if (inner < 0n || inner > size) {
        throw inputError(`${what} starts at byte ${inner} of '${argument.name}', which has ${size}`);
      }
      const nbytes = argument.nbytes === undefined ? size - inner : evaluate(argument.nbytes, symbols);
      if (nbytes < 0n || inner + nbytes > size) {
        throw inputError(
          `${what} takes bytes ${inner} to ${inner + nbytes} of '${argument.name}', which has ${size}`,
        );
      }
      const byteOffset = Number(window.byteOffset + inner);
      return { kind: "buffer", slot, byteOffset, nbytes: Number(nbytes) };
    });
    const dynamicSharedBytes = evaluate(launch.dynamicSharedBytes, symbols);
    if (dynamicSharedBytes < 0n || dynamicSharedBytes > MAX_BYTES) {
      throw inputError(`${what}: ${dynamicSharedBytes} bytes of shared memory`);
    }
    this.launches.push({ kernel: launch.kernel, arguments: planned, grid, block, step, dynamicSharedBytes });
  }
}

function extents(expressions: Extents<Expression>, symbols: Symbols, what: string): Extents<bigint> {
  const [x, y, z] = expressions.map((each) => evaluate(each, symbols)) as [bigint, bigint, bigint];
  if ([x, y, z].some((extent) => extent < 0n || extent > MAX_EXTENT)) {
    throw inputError(`${what}: extents (${x}, ${y}, ${z}) cannot be launched`);
  }
  return [x, y, z];
}

/** Raise an InputError if an integer does not fit a dtype. */
export function checkScalar(value: bigint, dtype: string, what: string): void {
  let low = -(1n << 53n);
  let end = (1n << 53n) + 1n;
  if (dtype.startsWith("int")) {
    end = 1n << BigInt(bitsOf(dtype) - 1);
    low = -end;
  } else if (dtype.startsWith("uint")) {
    [low, end] = [0n, 1n << BigInt(bitsOf(dtype))];
  } else if (dtype === "bool") {
    [low, end] = [0n, 2n];
  }
  if (value < low || value >= end) {
    throw inputError(`${what}: the scalar ${value} does not fit ${dtype}`);
  }
}
