/**
 * What a kernel's WGSL declares: its bindings with their access, its scalars, its workgroup.
 *
 * It accepts only the forms that the platform's modules use, as `webgpu/module_text.py` does. Anything
 * else is a CompileError, since a misread binding would be bound wrongly.
 */

import { TapmlError } from "./errors";
import type { Extents } from "./library";

export type Access = "read" | "read_write";

export interface ShaderShape {
  readonly symbol: string;
  /** Access of binding 0, 1, ...: the storage buffers. */
  readonly buffers: readonly Access[];
  /** Position of `<storage, read>` in the text, per storage binding. */
  readonly qualifiers: readonly (readonly [number, number])[];
  /** Dtypes of the scalars in the uniform behind the buffers. */
  readonly scalars: readonly string[];
  /** Whether that uniform ends with `packGridDimX`, which the launch fills in. */
  readonly packsGrid: boolean;
  readonly workgroup: Extents<number>;
  /** Bytes of its workgroup variables whose types are known. */
  readonly workgroupBytes: number;
  /** Whether it reads a binding's length, which must then equal the tensor's. */
  readonly asksLength: boolean;
}

const NAME = "[A-Za-z_][A-Za-z0-9_]*";
const BINDING = new RegExp(
  `@group\\(\\s*(\\d+)u?\\s*\\)\\s*@binding\\(\\s*(\\d+)u?\\s*\\)\\s*` +
    `var\\s*(<\\s*(storage|uniform)\\s*(?:,\\s*(read|read_write)\\s*)?>)\\s*(${NAME})\\s*:([^;]*);`,
  "dg",
);
const ANY_BINDING = /@\s*(?:binding|group)\b/g;
const ENTRY = new RegExp(
  `@compute\\s+@workgroup_size\\(([^)]*)\\)\\s*fn\\s+(${NAME})\\s*\\(|` +
    `@workgroup_size\\(([^)]*)\\)\\s*@compute\\s+fn\\s+(${NAME})\\s*\\(`,
  "g",
);
const ANY_ENTRY = /@\s*(?:compute|vertex|fragment)\b/g;
const MEMBER = new RegExp(`^(${NAME})\\s*:\\s*(${NAME})$`);
const WORKGROUP = new RegExp(`var\\s*<\\s*workgroup\\s*>\\s*${NAME}\\s*:([^;]*);`, "g");
const ENABLE = /^[ \t]*enable\b/m;
const SCALARS: ReadonlyMap<string, string> = new Map([
  ["i32", "int32"],
  ["u32", "uint32"],
  ["f32", "float32"],
]);
const BYTES: ReadonlyMap<string, number> = new Map([
  ...["f32", "i32", "u32", "f", "i", "u", "bool"].map((name) => [name, 4] as const),
  ...["f16", "h"].map((name) => [name, 2] as const),
]);
const MAX_TEXT = 4 << 20;
const MAX_TYPE = 2000;

/** Read a module of one entry point; raises a CompileError. */
export function readShader(source: string): ShaderShape {
  if (source.length > MAX_TEXT) {
    throw wrong(`expected a module of ${MAX_TEXT} characters at most, got ${source.length}`);
  }
  const text = withoutComments(source);
  if (ENABLE.test(text)) {
    throw wrong(
      "the module has an enable line of its own; features belong into Kernel.features, and the " +
        "device adds the line",
    );
  }
  const [symbol, workgroup] = entryOf(text);
  const { buffers, qualifiers, uniform } = bindingsOf(text);
  const [scalars, packsGrid] = uniform === null ? [[], false] : scalarsOf(text, uniform);
  let workgroupBytes = 0;
  for (const [, kind] of text.matchAll(WORKGROUP)) {
    workgroupBytes += bytesOf((kind ?? "").trim());
  }
  const asksLength = text.includes("arrayLength");
  return { symbol, buffers, qualifiers, scalars, packsGrid, workgroup, workgroupBytes, asksLength };
}

/** The text with these `read` bindings made `read_write`. */
export function writtenText(source: string, shape: ShaderShape, bindings: ReadonlySet<number>): string {
  const spans = [...bindings]
    .map((binding) => shape.qualifiers[binding] ?? ([0, 0] as const))
    .sort(([a], [b]) => b - a);
  return spans.reduce(
    (text, [start, end]) => `${text.slice(0, start)}<storage, read_write>${text.slice(end)}`,
    source,
  );
}

function wrong(what: string): TapmlError {
  return new TapmlError("CompileError", what);
}

/** Replace comments by blanks, which keeps lines and columns. */
export function withoutComments(text: string): string {
  let kept = "";
  let at = 0;
  let depth = 0;
  while (at < text.length) {
    const pair = text.slice(at, at + 2);
    if (pair === "//" && depth === 0) {
      const newline = text.indexOf("\n", at);
      const end = newline < 0 ? text.length : newline;
      kept += " ".repeat(end - at);
      at = end;
    } else if (pair === "/*" || (pair === "*/" && depth > 0)) {
      depth += pair === "/*" ? 1 : -1;
      kept += "  ";
      at += 2;
    } else {
      const character = text[at] ?? "";
      kept += depth > 0 && character !== "\n" ? " " : character;
      at += 1;
    }
  }
  return kept;
}

function entryOf(text: string): [string, Extents<number>] {
  const entries = [...text.matchAll(ENTRY)];
  const [entry] = entries;
  if (entry === undefined || entries.length > 1 || [...text.matchAll(ANY_ENTRY)].length > 1) {
    throw wrong(
      "expected one entry point, written `@compute @workgroup_size(x, y, z) fn name(`; the module " +
        `has ${entries.length}`,
    );
  }
  const sizes = entry[1] ?? entry[3] ?? "";
  const name = entry[2] ?? entry[4] ?? "";
  const parts = sizes.split(",").filter((part) => part.trim() !== "");
  const extents = parts.map((part) => /^\s*(\d+)[iu]?\s*$/.exec(part)?.[1]);
  if (parts.length < 1 || parts.length > 3 || extents.includes(undefined)) {
    throw wrong(`${name}: expected one to three plain numbers in @workgroup_size, got (${sizes.trim()})`);
  }
  const [x = 1, y = 1, z = 1] = extents.map(Number);
  if (x * y * z === 0) {
    throw wrong(`${name} has a workgroup of (${x}, ${y}, ${z})`);
  }
  return [name, [x, y, z]];
}

interface Binding {
  readonly binding: number;
  readonly access: Access;
  readonly kind: string;
  readonly qualifier: readonly [number, number];
}

function bindingsOf(text: string): {
  buffers: Access[];
  qualifiers: (readonly [number, number])[];
  uniform: string | null;
} {
  const matches = [...text.matchAll(BINDING)];
  // A declaration in another form would be a binding that is never set.
  if ([...text.matchAll(ANY_BINDING)].length !== 2 * matches.length) {
    throw wrong(
      "expected every binding in the form `@group(0) @binding(0) var<storage, read> name : type;` " +
        "or `var<uniform>`; the module has one that is written otherwise",
    );
  }
  const buffers: Binding[] = [];
  const uniforms: Binding[] = [];
  for (const match of matches) {
    const [, group, binding, , space, access, name = "", kind = ""] = match;
    if (Number(group) !== 0) {
      throw wrong(`${name}: expected every binding in group 0, not in ${group}`);
    }
    if (space === "uniform" && access !== undefined) {
      throw wrong(`${name}: a uniform binding has no '${access}'`);
    }
    (space === "storage" ? buffers : uniforms).push({
      binding: Number(binding),
      access: access === "read_write" ? "read_write" : "read",
      kind: kind.trim(),
      qualifier: match.indices?.[3] ?? [0, 0],
    });
  }
  buffers.sort((a, b) => a.binding - b.binding);
  const numbers = [...buffers, ...uniforms].map((each) => each.binding);
  if (uniforms.length > 1 || numbers.some((number, place) => number !== place)) {
    throw wrong(
      "expected storage bindings 0, 1, ... and behind them one uniform binding at most; the module " +
        `has bindings ${numbers.join(", ")}, the last ${uniforms.length} of them uniform`,
    );
  }
  return {
    buffers: buffers.map((each) => each.access),
    qualifiers: buffers.map((each) => each.qualifier),
    uniform: uniforms[0]?.kind ?? null,
  };
}

function scalarsOf(text: string, struct: string): [string[], boolean] {
  const bodies = /^\w+$/.test(struct)
    ? [...text.matchAll(new RegExp(`\\bstruct\\s+${struct}\\s*\\{([^{}]*)\\}`, "g"))]
    : [];
  if (bodies.length !== 1) {
    throw wrong(`expected a struct ${struct} of 4-byte scalars for the uniform binding`);
  }
  const members = (bodies[0]?.[1] ?? "")
    .split(",")
    .map((member) => member.trim())
    .filter((member) => member !== "")
    .map((member) => {
      const [, name = "", type = ""] = MEMBER.exec(member) ?? [];
      const dtype = SCALARS.get(type);
      if (dtype === undefined) {
        throw wrong(
          `struct ${struct}: expected members of ${[...SCALARS.keys()].join(", ")}, got ` +
            `'${member.slice(0, 80)}'`,
        );
      }
      return { name, dtype };
    });
  const place = members.findIndex((member) => member.name === "packGridDimX");
  const last = members.length - 1;
  if (last < 0) {
    throw wrong(`struct ${struct} has no members`);
  }
  if (place >= 0 && (place !== last || members[last]?.dtype !== "uint32")) {
    throw wrong(`struct ${struct}: expected \`packGridDimX: u32\` as its last member`);
  }
  const dtypes = members.map((member) => member.dtype);
  return place < 0 ? [dtypes, false] : [dtypes.slice(0, -1), true];
}

/** Bytes of a workgroup variable; 0 for an unknown type. */
function bytesOf(type: string): number {
  let count = 1;
  let kind = type;
  for (;;) {
    const array = kind.length <= MAX_TYPE ? /^array\s*<(.*),\s*(\d+)[iu]?\s*>$/s.exec(kind) : null;
    if (array === null) {
      break;
    }
    count *= Number(array[2]);
    kind = (array[1] ?? "").trim();
  }
  const scalar = BYTES.get(kind);
  if (scalar !== undefined) {
    return count * scalar;
  }
  if (/^atomic\s*<\s*[iu]32\s*>$/.test(kind)) {
    return count * 4;
  }
  const vector = /^vec([234])(?:\s*<\s*(\w+)\s*>|([fhiu]))$/.exec(kind);
  // A vector of three takes the room of four.
  const lanes = vector?.[1] === "2" ? 2 : 4;
  return vector === null ? 0 : count * lanes * (BYTES.get(vector[2] ?? vector[3] ?? "") ?? 0);
}
