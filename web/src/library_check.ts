/**
 * The rules that a Library must satisfy before it is loaded, as in `library_check.py`.
 *
 * References exist, names are printable, expressions read known symbols, and counts and nesting stay
 * within bounds, so that planning a call needs no such checks.
 */

import { bitsOf } from "./dtype";
import { messageOf, protocolError } from "./errors";
import { unknownSymbol, type Expression } from "./expression";
import type { EntryProgram, Kernel, Launch, Library, OperatorProgram, Parameter, Statement } from "./library";

export const MAX_NAME = 512;
export const MAX_NESTING = 16;
const MAX_MODULES = 4096;
const MAX_OPTIONS = 16;
const MAX_KERNELS = 65536;
const MAX_OPERATORS = 65536;
const MAX_ENTRIES = 1024;
const MAX_RANK = 16;
const MAX_PARAMETERS = 65536;
const MAX_ITEMS = 1 << 20;

const IDENTIFIER = /^[A-Za-z_][A-Za-z0-9_$.]*$/;
const OPTION = /^[a-z][a-z0-9]*(-[a-z0-9]+)*$/;
// The complement of Python's str.isprintable: \p{C} and separators other than the plain space.
const UNPRINTABLE = /[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/u;
const KINDS: ReadonlySet<string> = new Set(["source", "portable", "machine"]);
const DYNAMIC_SHARED_MEMORY = "dynamic_shared_memory";
const ROLES: ReadonlySet<string> = new Set(["input", "output", "inout"]);

/** Raise a ProtocolError at the first fault; it names the operator, entry or kernel. */
export function checkLibrary(library: Library): void {
  checkName(library.target, "target");
  checkCount(library.modules.length, MAX_MODULES, "modules");
  checkCount(library.kernels.size, MAX_KERNELS, "kernels");
  checkCount(library.operators.size, MAX_OPERATORS, "operators");
  checkCount(library.entries.size, MAX_ENTRIES, "entries");
  library.modules.forEach((module, index) => {
    checkName(module.dialect, `module ${index}: dialect`);
    if (!KINDS.has(module.kind)) {
      throw protocolError(`module ${index}: its kind must be source, portable or machine`);
    }
    if (module.architecture !== "") {
      checkName(module.architecture, `module ${index}: architecture`);
    }
    checkOptions(module.options, `module ${index}: build options`);
  });
  for (const kernel of library.kernels.values()) {
    checkName(kernel.name, "kernel");
    checkKernel(kernel, library.modules.length);
  }
  for (const operator of library.operators.values()) {
    checkName(operator.name, "operator");
    new OperatorCheck(operator, library.kernels).run();
  }
  for (const entry of library.entries.values()) {
    checkName(entry.name, "entry");
    if (library.operators.has(entry.name)) {
      throw protocolError(`entry '${entry.name}' has the name of an operator; rename one of them`);
    }
    checkEntry(entry, library.operators);
  }
}

function checkOptions(options: readonly string[], where: string): void {
  checkCount(options.length, MAX_OPTIONS, where);
  options.forEach((option, index) => {
    if (option.length > MAX_NAME || !OPTION.test(option)) {
      throw protocolError(`${where}: '${option.slice(0, 80)}' is not a name like 'fast-math'`);
    }
    const before = options[index - 1];
    if (before !== undefined && before >= option) {
      throw protocolError(`${where}: they must be sorted and unique`);
    }
  });
}

function checkKernel(kernel: Kernel, modules: number): void {
  const where = `kernel '${kernel.name}'`;
  if (kernel.symbol.length > MAX_NAME || !IDENTIFIER.test(kernel.symbol)) {
    throw protocolError(`${where}: '${kernel.symbol.slice(0, 80)}' is not a function name`);
  }
  if (kernel.module < 0 || kernel.module >= modules) {
    throw protocolError(`${where}: module ${kernel.module} does not exist; there are ${modules}`);
  }
  if (kernel.threadsPerBlock < 0 || kernel.sharedMemoryBytes < 0 || kernel.subgroupWidth < 0) {
    throw protocolError(`${where}: threads and shared memory must not be negative`);
  }
  for (const feature of kernel.features) {
    checkName(feature, `${where}: feature`);
  }
}

/** Walks an operator's statements with the symbols in scope. */
class OperatorCheck {
  private readonly where: string;
  private readonly parameters: ReadonlySet<string>;
  private readonly workspaces: ReadonlySet<string>;

  constructor(
    private readonly operator: OperatorProgram,
    private readonly kernels: ReadonlyMap<string, Kernel>,
  ) {
    this.where = `operator '${operator.name}'`;
    this.parameters = new Set(operator.parameters.map((parameter) => parameter.name));
    this.workspaces = new Set(operator.workspaces.map((workspace) => workspace.name));
  }

  run(): void {
    const { operator, where } = this;
    const symbols = checkParameters(operator.parameters, operator.symbols, where);
    checkUnique([...this.parameters, ...operator.workspaces.map((each) => each.name)], where);
    for (const workspace of operator.workspaces) {
      checkName(workspace.name, `${where}: workspace`);
      checkKnown(workspace.nbytes, symbols, `${where}: workspace '${workspace.name}'`);
    }
    this.statements(operator.statements, symbols, 0);
  }

  private statements(statements: readonly Statement[], symbols: ReadonlySet<string>, depth: number): void {
    if (depth > MAX_NESTING) {
      throw protocolError(`${this.where}: nested deeper than ${MAX_NESTING} statements`);
    }
    checkCount(statements.length, MAX_ITEMS, `${this.where}: statements`);
    const scope = new Set(symbols);
    for (const statement of statements) {
      switch (statement.kind) {
        case "launch":
          this.launch(statement, scope);
          break;
        case "loop":
          checkName(statement.symbol, `${this.where}: loop symbol`);
          checkKnown(statement.start, scope, `${this.where}: loop over '${statement.symbol}'`);
          checkKnown(statement.extent, scope, `${this.where}: loop over '${statement.symbol}'`);
          this.statements(statement.body, new Set([...scope, statement.symbol]), depth + 1);
          break;
        case "if":
          checkKnown(statement.condition, scope, `${this.where}: condition`);
          this.statements(statement.then, scope, depth + 1);
          this.statements(statement.otherwise, scope, depth + 1);
          break;
        case "bind":
          checkName(statement.symbol, `${this.where}: bound symbol`);
          checkKnown(statement.value, scope, `${this.where}: '${statement.symbol}'`);
          scope.add(statement.symbol);
      }
    }
  }

  private launch(launch: Launch, symbols: ReadonlySet<string>): void {
    const where = `${this.where}: launch of '${launch.kernel.slice(0, 80)}'`;
    const kernel = this.kernels.get(launch.kernel);
    if (kernel === undefined) {
      throw protocolError(`${where}: the Library has no such kernel`);
    }
    for (const extent of [...launch.grid, ...launch.block, launch.dynamicSharedBytes]) {
      checkKnown(extent, symbols, where);
    }
    if (launch.dynamicSharedBytes !== 0n && !kernel.features.includes(DYNAMIC_SHARED_MEMORY)) {
      throw protocolError(
        `${where}: it asks for shared memory, and its kernel lacks the feature '${DYNAMIC_SHARED_MEMORY}'`,
      );
    }
    for (const argument of launch.arguments) {
      if (argument.kind === "buffer") {
        if (!this.parameters.has(argument.name) && !this.workspaces.has(argument.name)) {
          throw protocolError(`${where}: no parameter or workspace '${argument.name}'`);
        }
        checkKnown(argument.byteOffset, symbols, where);
        checkKnown(argument.nbytes ?? 0n, symbols, where);
      } else if (argument.kind === "tensor") {
        if (!this.parameters.has(argument.name)) {
          throw protocolError(`${where}: no parameter '${argument.name}' to pass as a tensor`);
        }
      } else {
        checkDtype(argument.dtype, where);
        checkKnown(argument.value, symbols, where);
        checkKnown(argument.divisor, symbols, where);
        if (argument.divisor !== 1n && !/^b?float/.test(argument.dtype)) {
          throw protocolError(`${where}: a quotient is not ${argument.dtype}`);
        }
      }
    }
  }
}

function checkEntry(entry: EntryProgram, operators: ReadonlyMap<string, OperatorProgram>): void {
  const where = `entry '${entry.name}'`;
  const symbols = checkParameters(entry.parameters, entry.symbols, where);
  checkCount(entry.storages.length, MAX_ITEMS, `${where}: storages`);
  checkCount(entry.values.length, MAX_ITEMS, `${where}: values`);
  checkCount(entry.calls.length, MAX_ITEMS, `${where}: calls`);
  const storages = [...entry.parameters, ...entry.storages].map((each) => each.name);
  checkUnique(storages, where);
  for (const storage of entry.storages) {
    checkName(storage.name, `${where}: storage`);
    checkKnown(storage.nbytes, symbols, `${where}: storage '${storage.name}'`);
  }
  const known = new Set(storages);
  const values = new Set<string>();
  for (const value of entry.values) {
    const at = `${where}: value '${value.name.slice(0, 80)}'`;
    checkName(value.name, `${where}: value`);
    checkDtype(value.dtype, at);
    if (values.has(value.name)) {
      throw protocolError(`${at} occurs twice`);
    }
    if (!known.has(value.storage)) {
      throw protocolError(`${at}: no parameter or storage '${value.storage.slice(0, 80)}'`);
    }
    checkCount(value.shape.length, MAX_RANK, at);
    for (const expression of [value.byteOffset, ...value.shape]) {
      checkKnown(expression, symbols, at);
    }
    values.add(value.name);
  }
  entry.calls.forEach((call, index) => {
    const at = `${where}: call ${index} of '${call.operator.slice(0, 80)}'`;
    const operator = operators.get(call.operator);
    if (operator === undefined) {
      throw protocolError(`${at}: the Library has no such operator`);
    }
    if (call.arguments.length !== operator.parameters.length) {
      throw protocolError(
        `${at}: expected ${operator.parameters.length} arguments, got ${call.arguments.length}`,
      );
    }
    const missing = call.arguments.find((name) => !values.has(name));
    if (missing !== undefined) {
      throw protocolError(`${at}: no value '${missing.slice(0, 80)}'`);
    }
    const given = call.symbols.map(([symbol]) => symbol);
    checkUnique(given, at);
    if (given.length !== operator.symbols.length || given.some((s) => !operator.symbols.includes(s))) {
      throw protocolError(
        `${at}: expected symbols (${operator.symbols.join(", ")}), got (${given.join(", ")})`,
      );
    }
    for (const [, expression] of call.symbols) {
      checkKnown(expression, symbols, at);
    }
  });
}

/** Check parameters; returns the symbols that a call binds. */
function checkParameters(
  parameters: readonly Parameter[],
  symbols: readonly string[],
  where: string,
): ReadonlySet<string> {
  checkCount(parameters.length, MAX_PARAMETERS, `${where}: parameters`);
  checkCount(symbols.length, MAX_PARAMETERS, `${where}: symbols`);
  checkUnique(
    parameters.map((parameter) => parameter.name),
    where,
  );
  checkUnique(symbols, where);
  const known = new Set(symbols);
  for (const symbol of symbols) {
    checkName(symbol, `${where}: symbol`);
  }
  for (const parameter of parameters) {
    const at = `${where}: parameter '${parameter.name.slice(0, 80)}'`;
    checkName(parameter.name, `${where}: parameter`);
    checkDtype(parameter.dtype, at);
    if (!ROLES.has(parameter.role)) {
      throw protocolError(`${at}: role must be input, output or inout`);
    }
    checkCount(parameter.shape.length, MAX_RANK, at);
    for (const extent of parameter.shape) {
      if (typeof extent === "string") {
        known.add(extent);
      }
    }
  }
  for (const parameter of parameters) {
    for (const extent of parameter.shape) {
      checkKnown(extent, known, `${where}: parameter '${parameter.name.slice(0, 80)}'`);
    }
  }
  return known;
}

function checkName(name: string, what: string): void {
  const { length } = Array.from(name);
  if (length === 0 || length > MAX_NAME || UNPRINTABLE.test(name)) {
    throw protocolError(
      `${what}: expected a name of 1 to ${MAX_NAME} printable characters, ` + `got '${name.slice(0, 80)}'`,
    );
  }
}

function checkCount(count: number, most: number, what: string): void {
  if (count > most) {
    throw protocolError(`${what}: at most ${most} are allowed, got ${count}`);
  }
}

function checkUnique(names: readonly string[], where: string): void {
  const seen = new Set<string>();
  for (const name of names) {
    if (seen.has(name)) {
      throw protocolError(`${where}: the name '${name.slice(0, 80)}' occurs twice`);
    }
    seen.add(name);
  }
}

function checkDtype(name: string, where: string): void {
  try {
    bitsOf(name);
  } catch (error) {
    throw protocolError(`${where}: ${messageOf(error)}`);
  }
}

function checkKnown(expression: Expression, symbols: ReadonlySet<string>, where: string): void {
  const unknown = unknownSymbol(expression, symbols);
  if (unknown !== undefined) {
    throw protocolError(`${where}: no shape or symbol gives '${unknown.slice(0, 80)}'`);
  }
}
