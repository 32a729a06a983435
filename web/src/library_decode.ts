/** From a decoded msgpack header to a Library, checking every type. */

import { protocolError } from "./errors";
import { expressionFrom, type Expression } from "./expression";
import type {
  Argument,
  CodeModule,
  EntryCall,
  EntryProgram,
  EntryValue,
  Extents,
  Kernel,
  Library,
  ModuleKind,
  OperatorProgram,
  Parameter,
  Role,
  Statement,
  Workspace,
} from "./library";
import { MAX_NESTING } from "./library_check";

const MAX_METADATA = 1024;
const BOUND = 1n << 63n;

/** Build the Library that `header` describes; `code` holds the modules' bytes. */
export function decodeLibrary(header: unknown, code: Uint8Array): Library {
  const [target, metadata, modules, kernels, operators, entries] = fields(header, 6, "header");
  return {
    target: text(target, "target"),
    modules: modulesFrom(modules, code),
    kernels: named(items(kernels, "kernels").map(kernelFrom)),
    operators: named(items(operators, "operators").map(operatorFrom)),
    entries: named(items(entries, "entries").map(entryFrom)),
    metadata: metadataFrom(metadata),
  };
}

function wrong(what: string): Error {
  return protocolError(`Library: ${what}`);
}

function items(data: unknown, what: string): unknown[] {
  if (!Array.isArray(data)) {
    throw wrong(`${what}: expected a list, got ${typeof data}`);
  }
  return data;
}

function fields(data: unknown, count: number, what: string): unknown[] {
  if (!Array.isArray(data) || data.length !== count) {
    throw wrong(`${what}: expected a list of ${count} fields`);
  }
  return data;
}

function text(data: unknown, what: string): string {
  if (typeof data !== "string") {
    throw wrong(`${what}: expected text, got ${typeof data}`);
  }
  return data;
}

/** A count; `library_check` bounds it. */
function count(data: unknown, what: string): number {
  const value = typeof data === "bigint" ? Number(data) : data;
  if (!Number.isSafeInteger(value)) {
    throw wrong(`${what}: expected an integer`);
  }
  return value as number;
}

function expression(data: unknown): Expression {
  const value = expressionFrom(data);
  if (typeof value === "bigint" && (value < -BOUND || value >= BOUND)) {
    throw wrong("expression: expected a 64-bit integer");
  }
  return value;
}

const texts = (data: unknown, what: string): string[] => items(data, what).map((item) => text(item, what));

const expressions = (data: unknown, what: string): Expression[] => items(data, what).map(expression);

/** In order of code points, as Python sorts text. */
function precedes(first: string, second: string): boolean {
  const a = Array.from(first);
  const b = Array.from(second);
  for (let at = 0; at < Math.min(a.length, b.length); at += 1) {
    const x = a[at]?.codePointAt(0) ?? 0;
    const y = b[at]?.codePointAt(0) ?? 0;
    if (x !== y) {
      return x < y;
    }
  }
  return a.length < b.length;
}

function named<T extends { readonly name: string }>(list: T[]): Map<string, T> {
  list.forEach((item, index) => {
    const before = list[index - 1];
    if (before !== undefined && !precedes(before.name, item.name)) {
      throw wrong("named items must be sorted and unique");
    }
  });
  return new Map(list.map((item) => [item.name, item]));
}

function metadataFrom(data: unknown): Map<string, string> {
  const pairs = items(data, "metadata").map((item) => {
    const [name, value] = fields(item, 2, "metadata");
    return { name: text(name, "metadata"), value: text(value, "metadata") };
  });
  if (pairs.length > MAX_METADATA) {
    throw wrong(`metadata must be at most ${MAX_METADATA} names`);
  }
  return new Map([...named(pairs)].map(([name, pair]) => [name, pair.value]));
}

function modulesFrom(data: unknown, code: Uint8Array): CodeModule[] {
  let position = 0;
  const modules = items(data, "modules").map((item, index) => {
    const [dialect, kind, architecture, size, options] = fields(item, 5, "module");
    const end = position + count(size, "module size");
    if (end < position || end > code.length) {
      throw wrong(`module ${index} is cut short or has no size`);
    }
    const module = {
      dialect: text(dialect, "dialect"),
      kind: text(kind, "module kind") as ModuleKind,
      architecture: text(architecture, "architecture"),
      code: code.subarray(position, end),
      options: texts(options, "options"),
    };
    position = end;
    return module;
  });
  if (position !== code.length) {
    throw wrong(`${code.length - position} bytes follow the last module`);
  }
  return modules;
}

function kernelFrom(data: unknown): Kernel {
  const [name, symbol, module, threads, shared, features, width] = fields(data, 7, "kernel");
  return {
    name: text(name, "kernel name"),
    symbol: text(symbol, "kernel symbol"),
    module: count(module, "kernel module"),
    threadsPerBlock: count(threads, "threads per block"),
    sharedMemoryBytes: count(shared, "shared memory"),
    features: texts(features, "kernel features"),
    subgroupWidth: count(width, "subgroup width"),
  };
}

function parametersFrom(data: unknown): Parameter[] {
  return items(data, "parameters").map((item) => {
    const [name, shape, dtype, role] = fields(item, 4, "parameter");
    return {
      name: text(name, "parameter name"),
      shape: expressions(shape, "parameter shape"),
      dtype: text(dtype, "parameter dtype"),
      role: text(role, "parameter role") as Role,
    };
  });
}

function workspacesFrom(data: unknown, what: string): Workspace[] {
  return items(data, `${what}s`).map((item) => {
    const [name, nbytes] = fields(item, 2, what);
    return { name: text(name, `${what} name`), nbytes: expression(nbytes) };
  });
}

function operatorFrom(data: unknown): OperatorProgram {
  const [name, parameters, statements, workspaces, symbols] = fields(data, 5, "operator");
  return {
    name: text(name, "operator name"),
    parameters: parametersFrom(parameters),
    statements: statementsFrom(statements, 0),
    workspaces: workspacesFrom(workspaces, "workspace"),
    symbols: texts(symbols, "operator symbols"),
  };
}

function statementsFrom(data: unknown, depth: number): Statement[] {
  if (depth > MAX_NESTING) {
    throw wrong(`statements are nested deeper than ${MAX_NESTING}`);
  }
  return items(data, "statements").map((item) => statementFrom(item, depth));
}

function statementFrom(data: unknown, depth: number): Statement {
  const [kind, ...rest] = items(data, "statement");
  if (kind === "launch" && rest.length === 5) {
    return {
      kind,
      kernel: text(rest[0], "kernel name"),
      arguments: items(rest[1], "arguments").map(argumentFrom),
      grid: extents(rest[2]),
      block: extents(rest[3]),
      dynamicSharedBytes: expression(rest[4]),
    };
  }
  if (kind === "loop" && rest.length === 4) {
    return {
      kind,
      symbol: text(rest[0], "loop symbol"),
      start: expression(rest[1]),
      extent: expression(rest[2]),
      body: statementsFrom(rest[3], depth + 1),
    };
  }
  if (kind === "if" && rest.length === 3) {
    return {
      kind,
      condition: expression(rest[0]),
      then: statementsFrom(rest[1], depth + 1),
      otherwise: statementsFrom(rest[2], depth + 1),
    };
  }
  if (kind === "bind" && rest.length === 2) {
    return { kind, symbol: text(rest[0], "symbol"), value: expression(rest[1]) };
  }
  throw wrong("expected a launch, loop, if or bind statement");
}

function extents(data: unknown): Extents<Expression> {
  const [x, y, z] = fields(data, 3, "grid and block");
  return [expression(x), expression(y), expression(z)];
}

function argumentFrom(data: unknown): Argument {
  const [kind, ...rest] = items(data, "argument");
  if (kind === "buffer" && rest.length === 2) {
    return { kind, name: text(rest[0], "argument name"), byteOffset: expression(rest[1]) };
  }
  if (kind === "buffer" && rest.length === 3) {
    const [name, byteOffset, nbytes] = rest;
    return {
      kind,
      name: text(name, "argument name"),
      byteOffset: expression(byteOffset),
      nbytes: expression(nbytes),
    };
  }
  if (kind === "tensor" && rest.length === 1) {
    return { kind, name: text(rest[0], "argument name") };
  }
  if (kind === "scalar" && rest.length === 3) {
    const [value, dtype, divisor] = rest;
    return {
      kind,
      value: expression(value),
      dtype: text(dtype, "argument dtype"),
      divisor: expression(divisor),
    };
  }
  throw wrong("expected a buffer, tensor or scalar argument");
}

function entryFrom(data: unknown): EntryProgram {
  const [name, parameters, storages, values, calls, symbols] = fields(data, 6, "entry");
  return {
    name: text(name, "entry name"),
    parameters: parametersFrom(parameters),
    storages: workspacesFrom(storages, "storage"),
    values: items(values, "values").map(valueFrom),
    calls: items(calls, "calls").map(callFrom),
    symbols: texts(symbols, "entry symbols"),
  };
}

function valueFrom(data: unknown): EntryValue {
  const [name, storage, byteOffset, shape, dtype] = fields(data, 5, "value");
  return {
    name: text(name, "value name"),
    storage: text(storage, "value storage"),
    byteOffset: expression(byteOffset),
    shape: expressions(shape, "value shape"),
    dtype: text(dtype, "value dtype"),
  };
}

function callFrom(data: unknown): EntryCall {
  const [operator, given, symbols] = fields(data, 3, "call");
  return {
    operator: text(operator, "operator name"),
    arguments: texts(given, "call arguments"),
    symbols: items(symbols, "call symbols").map((item) => {
      const [name, value] = fields(item, 2, "call symbol");
      return [text(name, "symbol"), expression(value)] as const;
    }),
  };
}
