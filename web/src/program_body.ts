/** Programs: commands that are sent once, with integer arguments at each run. */

import { inputError, messageOf, protocolError, TapmlError } from "./errors";
import { array, integer, isMap, packHeader, text, type Header } from "./wire";

const MAX_ARGUMENTS = 64;
export const MAX_PROGRAM_NAME = 256;
const MAX_DEPTH = 4;
/** A program's commands and their numbers of fields. */
const FIELDS: ReadonlyMap<string, number> = new Map([
  ["call", 5],
  ["copy", 5],
  ["fence", 0],
  ["fill", 4],
  ["paste", 5],
  ["read", 3],
  ["write", 4],
]);
/** Fields that are maps: never an argument, though their values may be. */
const MAPS: ReadonlyMap<string, readonly number[]> = new Map([["call", [4, 5]]]);

export class ProgramBody {
  constructor(
    readonly name: string,
    readonly commands: readonly (readonly unknown[])[],
    private readonly varying: readonly boolean[],
    private readonly argumentCount: number,
    readonly nbytes: number,
  ) {}

  /** Check the arguments of a run. */
  take(given: unknown): number[] {
    const values = array(given, "arguments", MAX_ARGUMENTS);
    if (values.length !== this.argumentCount) {
      throw inputError(`program '${this.name}' has ${this.argumentCount} arguments, ${values.length} came`);
    }
    return values.map((value) => integer(value, "argument"));
  }

  command(place: number, values: readonly number[]): readonly unknown[] {
    const command = this.commands[place] ?? [];
    return this.varying[place] === true ? filled(command, (number) => values[number]) : command;
  }
}

/** Check a received program. */
export function checkProgram(name: unknown, commands: unknown, most: number): ProgramBody {
  const called = text(name, "program name", MAX_PROGRAM_NAME);
  if (called === "") {
    throw protocolError("a program has a name");
  }
  const given = array(commands, "commands of a program");
  if (given.length > most) {
    throw inputError(`program '${called}' of ${given.length} commands; at most ${most} are taken`);
  }
  const used = new Set<number>();
  const varying: boolean[] = [];
  const checked = given.map((command, place) => {
    const found = new Set<number>();
    try {
      const fields = checkedCommand(command);
      filled(fields, (number) => found.add(number));
      varying.push(found.size > 0);
      found.forEach((number) => used.add(number));
      return fields;
    } catch (error) {
      const kind = error instanceof TapmlError ? error.kind : "ProtocolError";
      throw new TapmlError(kind, `command ${place} of program '${called}': ${messageOf(error)}`);
    }
  });
  if (used.size > 0 && Math.max(...used) !== used.size - 1) {
    const numbers = [...used].sort((a, b) => a - b).join(", ");
    throw protocolError(`program '${called}' has arguments [${numbers}]: they count from 0`);
  }
  // Integers beyond 2^53 count as the longest others.
  const nbytes = packHeader({ commands: narrowed(given) }).length;
  return new ProgramBody(called, checked, varying, used.size, nbytes);
}

function narrowed(value: unknown): unknown {
  if (typeof value === "bigint") {
    return Number.MAX_SAFE_INTEGER;
  }
  if (Array.isArray(value)) {
    return value.map(narrowed);
  }
  return isMap(value)
    ? Object.fromEntries(Object.entries(value).map(([key, each]) => [key, narrowed(each)]))
    : value;
}

function checkedCommand(command: unknown): unknown[] {
  const fields = array(command, "command");
  const name = fields.length > 0 ? text(fields[0], "command", 40) : "";
  const count = FIELDS.get(name);
  if (count === undefined) {
    const known = [...FIELDS.keys()].join(", ");
    throw inputError(`'${name}' is nothing a program does; it knows ${known}`);
  }
  if (fields.length - 1 !== count) {
    throw protocolError(`wrong number of fields in '${name}'`);
  }
  return fields;
}

type ValueOf = (number: number) => unknown;

/** A command with every argument replaced by its value. */
function filled(command: readonly unknown[], valueOf: ValueOf): unknown[] {
  const maps = MAPS.get(String(command[0])) ?? [];
  return command.map((field, position) =>
    maps.includes(position) && isMap(field)
      ? mapValues(field, (value) => replaced(value, valueOf, 0))
      : replaced(field, valueOf, 0),
  );
}

function mapValues(given: Header, change: (value: unknown) => unknown): Header {
  return Object.fromEntries(Object.entries(given).map(([key, value]) => [key, change(value)]));
}

function replaced(value: unknown, valueOf: ValueOf, depth: number): unknown {
  if (Array.isArray(value)) {
    if (depth === MAX_DEPTH) {
      throw protocolError("its fields lie too deep in one another");
    }
    return value.map((each) => replaced(each, valueOf, depth + 1));
  }
  if (isMap(value)) {
    if (Object.keys(value).length !== 1 || !("argument" in value)) {
      throw protocolError('an argument is {"argument": its number} and nothing else');
    }
    return valueOf(integer(value["argument"], "argument", MAX_ARGUMENTS - 1));
  }
  return value;
}
